// SPDX-License-Identifier: MIT

// qloracc's command line, resolved: the options of the run (shared with
// qlora-run) and the compiler's own.

#ifndef QLORA_TOOLS_QLORACC_SETTINGS_H
#define QLORA_TOOLS_QLORACC_SETTINGS_H

#include <algorithm>

#include "compiler/Codegen/Codegen.h"
#include "compiler/Pipeline.h"
#include "compiler/Report/Report.h"
#include "runtime/Base/Options.h"
#include "runtime/Base/ParallelMesh.h"

namespace qlora {

/// Where results go.
struct CompilerSettings {
  std::string input;       ///< `-`: standard input
  std::string output;      ///< -o; empty: nothing is linked (--emit)
  std::string emit;        ///< a phase, `cpp`, `cuda`, or `so`
  std::string dumpPhases;  ///< folder, or empty
  std::string report;      ///< file, or empty
  ReportFormat reportFormat = ReportFormat::Json;
  CodegenOptions codegen;
  bool verbose = false;
  std::string answer; ///< of --help, --help-all or --version: nothing is done
  std::vector<std::string> mlirFlags; ///< for MLIR's own parser
  Options options;
  CompileOptions compile;
  /// With --auto-find-batch-size the candidates, ascending; else empty, and the
  /// batch of `compile` is what was asked for.
  std::vector<int64_t> batches;
  int64_t ranks = 1; ///< that share a global batch
  /// Of these, that have rows of their own.
  int64_t rowRanks() const {
    const int64_t together = compile.tensorRanks * compile.contextRanks;
    return std::max<int64_t>(1, ranks / together);
  }
  bool findsLayout = false; ///< --parallel auto
  // What machines the ranks of these are on: as DeviceProfile has it.
  int64_t gpusPerNode = 0;
  std::string network;
};

/// Compiles for `batch`, with what follows from it, and records it.
Status setBatch(CompilerSettings &settings, int64_t batch);

/// Compiles for `mesh`, and records it; refuses one that the other settings rule
/// out.
Status setLayout(CompilerSettings &settings, const ParallelMesh &mesh);

/// Parses `words` (argv without the program's name). MLIR's own options are
/// registered with llvm::cl before, so that they are told from mistakes.
StatusOr<CompilerSettings>
parseSettings(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_SETTINGS_H
