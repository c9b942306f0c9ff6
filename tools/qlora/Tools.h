// SPDX-License-Identifier: MIT

// Commands that start the other tools: finding a tool, printing a command so
// that it can be pasted, and running it.

#ifndef QLORA_TOOLS_QLORA_TOOLS_H
#define QLORA_TOOLS_QLORA_TOOLS_H

#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/OptionTable.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Scope of `qlora`'s own option rows.
inline constexpr OptionScope kRun = OptionScope::kRun;

struct ToolCommand {
  std::string tool; ///< "qloracc"
  std::vector<std::string> arguments;
};

/// Returns the path of a tool: next to this program, else in PATH. kNotFound,
/// with a fix, if there is none.
StatusOr<std::string> findTool(std::string_view tool);

/// Returns shell syntax: words with special characters in single quotes, and
/// the tool's path if PATH does not lead to it.
std::string shellText(const ToolCommand &command);

enum class ToolVerbosity {
  kAll,      ///< output is shown as it comes
  kErrors,   ///< output is shown only if the tool fails
  kTerminal, ///< the tool writes to our terminal (progress bars)
};

/// Runs a tool to its end. Its output goes to standard error: standard output
/// is for qlora-run. Returns an error if the tool fails; it prints the reason.
Status runTool(const ToolCommand &command,
               ToolVerbosity noise = ToolVerbosity::kAll);

/// Replaces this process with the tool, so that signals and the exit code are
/// the tool's. Returns only on failure.
Status becomeTool(const ToolCommand &command);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_TOOLS_H
