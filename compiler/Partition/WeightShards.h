// SPDX-License-Identifier: MIT

// Shards of weights for passes that shard matmuls, sequences, experts or
// tables: ranges of trainable weights, and slices of frozen weights.

#ifndef QLORA_COMPILER_PARTITION_WEIGHTSHARDS_H
#define QLORA_COMPILER_PARTITION_WEIGHTSHARDS_H

#include "dialects/Model/Model.h"

#include "llvm/ADT/MapVector.h"

namespace qlora {

/// Lengths of consecutive column ranges, each of which is sharded separately.
using Segments = llvm::SmallVector<int64_t>;

/// How a parameter is sharded along one dimension.
struct ShardedWeight {
  unsigned dimension = 0;
  Segments segments;

  bool operator==(const ShardedWeight &) const = default;
};
/// Keyed by parameter name.
using ShardedWeights = llvm::MapVector<mlir::StringAttr, ShardedWeight>;

/// Changes a frozen parameter to one rank's slice. The shard's block
/// size and scales may differ from the whole's (runtime/Weights/Slices.h).
void sliceParameter(model::ParameterOp parameter, const ShardedWeight &how,
                    int64_t ranks);
/// Returns whether shards of `parameter` are valid tensors of its format.
bool canSliceParameter(model::ParameterOp parameter, const ShardedWeight &how,
                       int64_t ranks);

/// Bytes of frozen weights before and after.
struct SlicedBytes {
  int64_t whole = 0, sliced = 0;
};
/// Gives the frozen parameters of `weights`, and their uses, their shards'
/// types; the loader shards the tensors. Skips trainable parameters.
SlicedBytes sliceWeights(mlir::ModuleOp module, const ShardedWeights &weights,
                         int64_t ranks);

/// Creates a model.weight for a rank's range of `length` elements of `weight`
/// from `first` on, at the builder's position.
model::WeightOp usePart(mlir::OpBuilder &b, model::WeightOp weight,
                        model::Ranks group, int64_t ranks, unsigned dimension,
                        int64_t first, int64_t length);

} // namespace qlora

#endif // QLORA_COMPILER_PARTITION_WEIGHTSHARDS_H
