// SPDX-License-Identifier: MIT

// Finds the other tools, prints their commands for copying into a shell, and
// runs them.

#ifndef QLORA_TOOLS_QLORA_TOOLS_H
#define QLORA_TOOLS_QLORA_TOOLS_H

#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/OptionTable.h"

namespace qlora {

/// Scope of `qlora`'s own option rows.
inline constexpr OptionScope kRun = OptionScope::kRun;

struct ToolCommand {
  std::string tool; ///< "qloracc"
  std::vector<std::string> arguments;
};

/// Returns the path of a tool next to this program, else in PATH. If there is
/// none, returns kNotFound with a fix.
StatusOr<std::string> findTool(std::string_view tool);

/// Returns shell syntax. Quotes words with special characters, and uses the
/// tool's path if the tool is not in PATH.
std::string shellText(const ToolCommand &command);

/// Prints a line to standard error; nothing for an empty text.
void note(const std::string &text);

enum class ToolVerbosity {
  kAll,      ///< output is shown as it comes
  kErrors,   ///< output is shown only if the tool fails
  kTerminal, ///< the tool writes to our terminal (progress bars)
};

/// Runs a tool and waits for it. Sends its output to standard error, because
/// standard output is for qlora-run. A tool that fails prints the cause; the
/// returned error has only the exit code.
Status runTool(const ToolCommand &command,
               ToolVerbosity noise = ToolVerbosity::kAll);

/// Replaces this process with the tool, so that signals and the exit code are
/// the tool's. Returns only on failure.
Status becomeTool(const ToolCommand &command);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_TOOLS_H
