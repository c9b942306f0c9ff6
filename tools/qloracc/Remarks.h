// SPDX-License-Identifier: MIT

// What qloracc says of a compile that succeeds: warnings where the model does
// not do what the options ask, and the line at the end.

#ifndef QLORA_TOOLS_QLORACC_REMARKS_H
#define QLORA_TOOLS_QLORACC_REMARKS_H

#include "mlir/IR/BuiltinOps.h"

#include <string>
#include <vector>

#include "tools/qloracc/Settings.h"

namespace qlora {

/// Of an imported model and what was asked for: 4-bit weights that are stored
/// otherwise, rows that are longer than the model's positions.
std::vector<std::string> modelWarnings(mlir::ModuleOp model,
                                       const CompilerSettings &settings);

/// True where adapters stand beside weights that the program has [in, out]:
/// those of an imported Conv1D, which bitsandbytes turns when it quantises.
bool adaptsInOut(mlir::ModuleOp model, const Options &options);

/// Refuses rows that are longer than a table of learned positions; empty: none
/// are.
std::string positionsError(mlir::ModuleOp model,
                           const CompilerSettings &settings);

/// A line for each arena of the plan.
std::string arenasText(mlir::ModuleOp program);

/// "5.9 of 6.0 GiB", or without a limit "38.1 MiB".
std::string planText(int64_t bytes, int64_t limit);

/// Of the programs of a pipeline's stages the one that plans most memory.
mlir::ModuleOp largestOf(llvm::ArrayRef<mlir::ModuleOp> programs);

/// Llama, 1.7 M parameters, 89,088 trainable (4.97 %), batch 4 x 512 tokens,
/// plan 38.1 MiB, 0.6 s
///
/// Of one program, or of those of a pipeline's stages.
std::string compileSummary(llvm::ArrayRef<mlir::ModuleOp> programs,
                           const CompilerSettings &settings, double seconds);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_REMARKS_H
