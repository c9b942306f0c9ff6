// SPDX-License-Identifier: MIT

// Messages of a successful compile: warnings about options that the model does
// not satisfy, and the summary.

#ifndef QLORA_TOOLS_QLORACC_REMARKS_H
#define QLORA_TOOLS_QLORACC_REMARKS_H

#include "mlir/IR/BuiltinOps.h"

#include <string>
#include <vector>

#include "tools/qloracc/Settings.h"

namespace qlora {

/// Returns warnings about options that the imported model does not satisfy:
/// formats of stored weights, positions of the longest row, --fan-in-fan-out.
std::vector<std::string> modelWarnings(mlir::ModuleOp model,
                                       const CompilerSettings &settings);

/// Returns whether adapted weights are [in, out], as in GPT-2's Conv1D. They
/// are [out, in] if they are quantized, because bitsandbytes transposes them.
bool adaptsInOut(mlir::ModuleOp model, const Options &options);

/// Returns an error if the longest row exceeds the table of learned positions,
/// else an empty string.
std::string positionsError(mlir::ModuleOp model,
                           const CompilerSettings &settings);

/// Returns one line for each arena of the plan.
std::string arenasText(mlir::ModuleOp program);

/// Returns the program of the pipeline stage that plans the most memory.
mlir::ModuleOp largestOf(llvm::ArrayRef<mlir::ModuleOp> programs);

/// Returns the summary of one program, or of a pipeline's stages:
/// Llama, 1.7 M parameters, 89,088 trainable (4.97 %), batch 4 x 512 tokens,
/// plan 38.1 MiB, 0.6 s
std::string compileSummary(llvm::ArrayRef<mlir::ModuleOp> programs,
                           const CompilerSettings &settings, double seconds);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_REMARKS_H
