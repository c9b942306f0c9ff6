// SPDX-License-Identifier: MIT

// Command line of qloracc, resolved: options of the run (shared with qlora-run)
// and the compiler's own.

#ifndef QLORA_TOOLS_QLORACC_SETTINGS_H
#define QLORA_TOOLS_QLORACC_SETTINGS_H

#include "compiler/Codegen/Codegen.h"
#include "compiler/Report/Report.h"
#include "compiler/Search/PlanSettings.h"

namespace qlora {

struct CompilerSettings : PlanSettings {
  std::string input;       ///< `-`: standard input
  std::string output;      ///< -o; empty: nothing is linked (--emit)
  std::string emit;        ///< a phase, `cpp`, `cuda`, or `so`
  std::string dumpPhases;  ///< folder, or empty
  std::string report;      ///< file, or empty
  ReportFormat reportFormat = ReportFormat::Json;
  CodegenOptions codegen;
  bool verbose = false;
  std::string answer; ///< text of --help, --help-all, --version; or empty
  std::vector<std::string> mlirFlags; ///< for MLIR's own parser
};

/// Parses `words` (argv without the program's name). MLIR's own options must be
/// registered with llvm::cl before, so that they are not taken for mistakes.
StatusOr<CompilerSettings> parseSettings(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_SETTINGS_H
