// SPDX-License-Identifier: MIT

// The steps of build-train-step that have no micro-batch: those of the
// optimizers.

#ifndef QLORA_COMPILER_GRAPH_UPDATESTEP_H
#define QLORA_COMPILER_GRAPH_UPDATESTEP_H

#include "dialects/Train/Train.h"

#include "mlir/IR/BuiltinOps.h"

namespace qlora {

/// Fails with an error where updates are to be divided among ranks, but an
/// optimizer has to see a tensor whole, or all of what is kept, of which there
/// are no pieces.
llvm::LogicalResult checkDivision(mlir::ModuleOp module);

/// Adds `update` at the builder's position, and where an optimizer trains at
/// other weights than are used, `average` and `continue`.
void buildUpdateSteps(mlir::OpBuilder &builder, mlir::ModuleOp module);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_UPDATESTEP_H
