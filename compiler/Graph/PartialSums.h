// SPDX-License-Identifier: MIT

// Per-rank values of a forward function, for passes that shard matmuls,
// sequences or experts: partial sums of values, ranges of trainable weights,
// and tp or ep shards of frozen weights.

#ifndef QLORA_COMPILER_GRAPH_PARTIALSUMS_H
#define QLORA_COMPILER_GRAPH_PARTIALSUMS_H

#include "dialects/Model/Model.h"

#include "llvm/ADT/MapVector.h"

namespace qlora {

/// Values of which each rank of a group has a partial sum.
class PartialSums {
public:
  explicit PartialSums(model::Ranks ranks) : ranks(ranks) {}

  void insert(mlir::ValueRange values) { parts.insert_range(values); }
  bool contains(mlir::Value value) const { return parts.contains(value); }
  /// Returns the all-reduce of `value`. Creates it on the first call, directly
  /// after `value`.
  mlir::Value sumOf(mlir::Value value);
  /// Replaces each operand that is a partial sum by its all-reduce. Skips the
  /// operands before index `first`.
  void sumOperands(mlir::Operation *op, unsigned first = 0);

private:
  const model::Ranks ranks;
  llvm::DenseSet<mlir::Value> parts;
  llvm::DenseMap<mlir::Value, mlir::Value> summed;
};

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
/// Changes a frozen parameter to one rank's tp or ep shard. The shard's block
/// size and scales may differ from the whole's (runtime/Weights/Slices.h).
void sliceParameter(model::ParameterOp parameter, const ShardedWeight &how,
                    int64_t ranks);
/// Returns whether shards of `parameter` are valid tensors of its format.
bool canSliceParameter(model::ParameterOp parameter, const ShardedWeight &how,
                       int64_t ranks);

/// A builder listener that copies layer and phase of `of` to each created op.
class StageCopier : public mlir::OpBuilder::Listener {
public:
  explicit StageCopier(mlir::Operation *of) : of(of) {}
  void notifyOperationInserted(mlir::Operation *op,
                               mlir::OpBuilder::InsertPoint) override {
    model::copyStage(of, op);
    made.push_back(op);
  }
  llvm::SmallVector<mlir::Operation *> made;

private:
  mlir::Operation *of;
};

/// Creates a model.weight for a rank's range of `weight`, at the builder's
/// position.
model::WeightOp usePart(mlir::OpBuilder &b, model::WeightOp weight,
                        model::PartAttr part);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_PARTIALSUMS_H
