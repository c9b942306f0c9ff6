// SPDX-License-Identifier: MIT

// What single ranks have of a forward function, for the passes that divide its
// products, its lines or its experts: summands of values, parts of weights that
// are trained, and slices of frozen ones.

#ifndef QLORA_COMPILER_GRAPH_RANKPARTS_H
#define QLORA_COMPILER_GRAPH_RANKPARTS_H

#include "dialects/Model/Model.h"

#include "llvm/ADT/MapVector.h"

namespace qlora {

/// Values of which each rank of a group has a summand.
class Summands {
public:
  explicit Summands(model::Ranks ranks) : ranks(ranks) {}

  void insert(mlir::ValueRange values) { parts.insert_range(values); }
  bool contains(mlir::Value value) const { return parts.contains(value); }
  /// The sum of what ranks have, made once, where the value is made.
  mlir::Value sumOf(mlir::Value value);
  /// An op's operands from `first` on are sums from now on, where they are
  /// summands.
  void sumOperands(mlir::Operation *op, unsigned first = 0);

private:
  const model::Ranks ranks;
  llvm::DenseSet<mlir::Value> parts;
  llvm::DenseMap<mlir::Value, mlir::Value> summed;
};

/// So long in one dimension, and else the same.
mlir::RankedTensorType withLength(mlir::RankedTensorType type,
                                  unsigned dimension, int64_t length);

/// Columns that follow each other, each run of which is divided by itself.
using Segments = llvm::SmallVector<int64_t>;

/// What ranks have of a parameter: parts of one of its dimensions.
struct DividedWeight {
  unsigned dimension = 0;
  Segments segments;

  bool operator==(const DividedWeight &) const = default;
};
/// By the names of parameters.
using DividedWeights = llvm::MapVector<mlir::StringAttr, DividedWeight>;
/// A frozen parameter is from now on a slice of what it was, with scales that a
/// slice can have (runtime/Weights/Slices.h).
void sliceParameter(model::ParameterOp parameter, const DividedWeight &how,
                    int64_t ranks);
/// Whether its slices are tensors of its format.
bool canSliceParameter(model::ParameterOp parameter, const DividedWeight &how,
                       int64_t ranks);

/// Puts what is made into the stage of an op.
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

/// At the builder's position, what a rank uses of a weight.
model::WeightOp usePart(mlir::OpBuilder &b, model::WeightOp weight,
                        model::PartAttr part);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_RANKPARTS_H
