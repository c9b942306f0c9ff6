// SPDX-License-Identifier: MIT

// Builds the optimizer steps of build-train-step, which have no micro-batch.

#ifndef QLORA_COMPILER_DIFFERENTIATE_UPDATESTEP_H
#define QLORA_COMPILER_DIFFERENTIATE_UPDATESTEP_H

#include "dialects/Train/Train.h"

#include "mlir/IR/BuiltinOps.h"

namespace qlora {

/// Fails if updates must be sharded, but an optimizer needs a whole tensor or
/// states that cannot be sharded.
llvm::LogicalResult checkDivision(mlir::ModuleOp module);

/// Adds the step `update` at the builder's position. If evaluation uses other
/// weights than an optimizer trains, also adds `average` and `continue`.
void buildUpdateSteps(mlir::OpBuilder &builder, mlir::ModuleOp module);

} // namespace qlora

#endif // QLORA_COMPILER_DIFFERENTIATE_UPDATESTEP_H
