// SPDX-License-Identifier: MIT

// add(a, op) becomes `op init a`: the sum happens where op writes. Shared by
// fuse-lora (forward) and fuse-accumulate (gradients). And moving of ops, for
// who makes other sums of them (concat-siblings, order-sums).

#ifndef QLORA_COMPILER_GRAPH_ACCUMULATE_H
#define QLORA_COMPILER_GRAPH_ACCUMULATE_H

#include "dialects/Model/Model.h"

namespace qlora {

/// Rewrites `add` if one side is an accumulating op without an accumulator
/// that nothing else reads, and the other side, which nothing else reads
/// either, satisfies `isBase`. Returns true on success; `add` is gone then.
bool fuseAdd(model::AddOp add,
             llvm::function_ref<bool(mlir::Value)> isBase);

/// Moves `op`, and all that it reads, before `user` of its block, where they are
/// not; nothing of that may read `user`.
void moveAhead(mlir::Operation *op, mlir::Operation *user);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_ACCUMULATE_H
