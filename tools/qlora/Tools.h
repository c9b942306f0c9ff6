// SPDX-License-Identifier: MIT

// The tools that `qlora` starts, as commands: where they are, how they are
// shown so that they can be pasted, and how they are run.

#ifndef QLORA_TOOLS_QLORA_TOOLS_H
#define QLORA_TOOLS_QLORA_TOOLS_H

#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/OptionTable.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Of the rows of their option tables.
inline constexpr OptionScope kRun = OptionScope::kRun;

struct ToolCommand {
  std::string tool; ///< "qloracc"
  std::vector<std::string> arguments;
};

/// The path of a tool: beside this program, else in PATH. kNotFound, with what
/// to do, where there is none.
StatusOr<std::string> findTool(std::string_view tool);

/// As a shell reads it back: words with other than plain characters in single
/// quotes, the tool by its path where PATH does not lead to it.
std::string shellText(const ToolCommand &command);

enum class ToolNoise {
  kAll,    ///< what it says is shown as it comes
  kErrors, ///< only when it fails
  kTerminal, ///< it writes to ours itself: bars that move
};

/// Runs a tool to its end; what it says goes to standard error, which leaves
/// standard output to qlora-run. An error when it fails: it has said why.
Status runTool(const ToolCommand &command, ToolNoise noise = ToolNoise::kAll);

/// Becomes the tool, so that signals and the exit code are its own. Returns
/// only where that is not possible.
Status becomeTool(const ToolCommand &command);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_TOOLS_H
