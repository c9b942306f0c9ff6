// SPDX-License-Identifier: MIT

// What single ranks have of a forward function, for the passes that divide its
// products or its lines: summands of values, and parts of weights.

#ifndef QLORA_COMPILER_GRAPH_RANKPARTS_H
#define QLORA_COMPILER_GRAPH_RANKPARTS_H

#include "dialects/Model/Model.h"

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

/// At the builder's position, what a rank uses of a weight.
model::WeightOp usePart(mlir::OpBuilder &b, model::WeightOp weight,
                        model::PartAttr part);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_RANKPARTS_H
