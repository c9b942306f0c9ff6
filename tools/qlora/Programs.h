// SPDX-License-Identifier: MIT

// Programs of qlora-import and qloracc for a configuration, made once and kept
// in the cache (ProgramCache.h).

#ifndef QLORA_TOOLS_QLORA_PROGRAMS_H
#define QLORA_TOOLS_QLORA_PROGRAMS_H

#include <optional>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "tools/qlora/Configuration.h"
#include "tools/qlora/ProgramCache.h"
#include "tools/qlora/Tools.h"

namespace qlora {

/// Commands that make a program, and the program's path.
struct ProgramCommands {
  std::vector<ToolCommand> commands; ///< empty: the program exists
  std::string program;
  std::string note;
  std::optional<ProgramCache> cache; ///< nullopt: the user gave the program
};

StatusOr<ProgramCommands> programCommands(const Configuration &configuration);

/// Runs the commands.
Status makeProgram(const ProgramCommands &made);

/// Implements --dry-run: prints the commands.
Status showProgram(const ProgramCommands &made);

/// Prints a note if the program is in the cache.
void noteCached(const ProgramCommands &made);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_PROGRAMS_H
