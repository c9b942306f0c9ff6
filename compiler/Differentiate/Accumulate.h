// SPDX-License-Identifier: MIT

// Rewrites add(a, op) to `op init a`: the op accumulates into a. Shared by
// fuse-lora (forward) and fuse-accumulate (gradients). Also moves ops, for
// passes that reorder sums (concat-siblings, reorder-accumulation).

#ifndef QLORA_COMPILER_DIFFERENTIATE_ACCUMULATE_H
#define QLORA_COMPILER_DIFFERENTIATE_ACCUMULATE_H

#include "dialects/Model/Model.h"

namespace qlora {

/// If one side of `add` is an AccumulatingOp without an accumulator, makes the
/// other side its accumulator, erases `add`, and returns true. The other side
/// must satisfy `isBase`, and `add` must be the only reader of both.
bool fuseAdd(model::AddOp add, llvm::function_ref<bool(mlir::Value)> isBase);

/// Moves `op`, and the ops that compute its operands, before `user` in the same
/// block if they are later. None of these ops may read `user`.
void moveAhead(mlir::Operation *op, mlir::Operation *user);

} // namespace qlora

#endif // QLORA_COMPILER_DIFFERENTIATE_ACCUMULATE_H
