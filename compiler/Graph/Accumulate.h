// SPDX-License-Identifier: MIT

// add(a, op) becomes `op init a`: the sum happens where op writes. Shared by
// fuse-lora (forward) and fuse-accumulate (gradients).

#ifndef QLORA_COMPILER_GRAPH_ACCUMULATE_H
#define QLORA_COMPILER_GRAPH_ACCUMULATE_H

#include "dialects/Model/Model.h"

namespace qlora {

/// Rewrites `add` if one side is an accumulating op without an accumulator
/// that nothing else reads, and the other side, which nothing else reads
/// either, satisfies `isBase`. Returns true on success; `add` is gone then.
bool fuseAdd(model::AddOp add,
             llvm::function_ref<bool(mlir::Value)> isBase);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_ACCUMULATE_H
