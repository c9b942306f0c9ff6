// SPDX-License-Identifier: MIT

// Sums of summands, and uses of parts.

#include "compiler/Graph/RankParts.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

Value Summands::sumOf(Value value) {
  Value &sum = summed[value];
  if (!sum) {
    OpBuilder builder(value.getContext());
    builder.setInsertionPointAfterValue(value);
    auto op = AllSumOp::create(builder, value.getLoc(), value, ranks);
    copyStage(value.getDefiningOp(), op);
    sum = op;
  }
  return sum;
}

void Summands::sumOperands(Operation *op, unsigned first) {
  for (OpOperand &operand : op->getOpOperands().drop_front(first))
    if (contains(operand.get()))
      operand.set(sumOf(operand.get()));
}

WeightOp qlora::usePart(OpBuilder &b, WeightOp weight, PartAttr part) {
  auto used = cast<WeightOp>(b.clone(*weight));
  used.setPartAttr(part);
  used.getResult().setType(part.of(tensorOf(weight)));
  return used;
}
