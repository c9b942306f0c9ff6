// SPDX-License-Identifier: MIT

// Command line of qloracc, resolved: options of the run (shared with qlora-run)
// and the compiler's own.

#ifndef QLORA_TOOLS_QLORACC_SETTINGS_H
#define QLORA_TOOLS_QLORACC_SETTINGS_H

#include <algorithm>

#include "compiler/Codegen/Codegen.h"
#include "compiler/Pipeline.h"
#include "compiler/Report/Report.h"
#include "runtime/Base/Options.h"
#include "runtime/Base/ParallelMesh.h"

namespace qlora {

struct CompilerSettings {
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
  Options options;
  CompileOptions compile;
  /// Candidates of --auto-find-batch-size, ascending; else empty, and the batch
  /// of `compile` was given.
  std::vector<int64_t> batches;
  int64_t ranks = 1; ///< ranks that share a global batch
  /// Returns how many ranks have their own rows; tp and cp ranks share rows.
  int64_t rowRanks() const {
    const int64_t together = compile.tensorRanks * compile.contextRanks;
    return std::max<int64_t>(1, ranks / together);
  }
  bool findsLayout = false; ///< --parallel auto
  // GPUs of a machine and its network; 0 and empty: as in the device profile.
  int64_t gpusPerNode = 0;
  std::string network;
};

/// Sets the batch and the settings that depend on it, and records the batch as
/// an option.
Status setBatch(CompilerSettings &settings, int64_t batch);

/// Sets the mesh, and records it as --parallel.
Status setLayout(CompilerSettings &settings, const ParallelMesh &mesh);

/// Parses `words` (argv without the program's name). MLIR's own options must be
/// registered with llvm::cl before, so that they are not taken for mistakes.
StatusOr<CompilerSettings> parseSettings(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_SETTINGS_H
