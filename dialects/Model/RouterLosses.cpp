// SPDX-License-Identifier: MIT

// The auxiliary loss of routers: verifiers and arithmetic of its ops (labels as
// in ModelExpertOps.td).

#include "dialects/Model/Arithmetic.h"

using namespace mlir;
using namespace qlora::model;

//===----------------------------------------------------------------------===//
// router_probs
//===----------------------------------------------------------------------===//

LogicalResult RouterProbsOp::verify() {
  const int64_t experts = getExperts();
  if (experts < 1 || columnsOf(getLogits()) % experts)
    return emitOpError("(C1) expects the last dimension of ")
           << getLogits().getType() << " in groups of " << experts;
  if (getResult().getType() != getLogits().getType())
    return emitOpError("(C2) expects a result of type ")
           << getLogits().getType() << ", but got " << getResult().getType();
  return success();
}

int64_t RouterProbsOp::getRowColumns() { return getExperts(); }

SmallVector<MapAttr> RouterProbsOp::getRowMaps() {
  const int64_t routers = columnsOf(getLogits()) / getRowColumns();
  return {mapOf(*this, MapKind::Full), mapOf(*this, MapKind::Scalar, routers)};
}

SmallVector<Value> RouterProbsOp::buildRow(OpBuilder &builder,
                                           ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value logits = arguments[0];
  Type row = logits.getType();
  Value largest = RowMaxOp::create(builder, getLoc(), builder.getF32Type(),
                                   logits);
  Value powers = math::ExpOp::create(builder, getLoc(),
                                     a.sub(logits, a.splat(largest, row)));
  Value softmax = a.div(powers, a.splat(a.sum(powers), row));
  Value zero = a.constant(0, row);
  Value isToken = a.compare(arith::CmpFPredicate::OGT,
                            a.splat(arguments[1], row), zero);
  return {a.select(isToken, softmax, zero)};
}

//===----------------------------------------------------------------------===//
// mark_tokens, count_choices
//===----------------------------------------------------------------------===//

SmallVector<MapAttr> MarkTokensOp::getRowMaps() {
  return {mapOf(*this, MapKind::Scalar)};
}

SmallVector<Value> MarkTokensOp::buildRow(OpBuilder &builder,
                                          ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  auto row = RankedTensorType::get({getRowColumns()}, builder.getF32Type());
  Value zero = a.constant(0, row);
  Value isToken = a.compare(arith::CmpFPredicate::OGT,
                            a.splat(arguments[0], row), zero);
  return {a.select(isToken, a.constant(1, row), zero)};
}

LogicalResult CountChoicesOp::verify() {
  RankedTensorType choices = tensorOf(getChoices()),
                   counts = tensorOf(getCounts());
  if (choices.getRank() == 3 && choices.getElementType().isInteger(32) &&
      tensorOf(getMarks()).getShape() == choices.getShape() &&
      counts.getRank() == 1 && counts.getElementType().isF32())
    return success();
  return emitOpError("(C1) expects i32 [B, T, k], marks of that shape and f32 "
                     "[E], but got ")
         << choices << ", " << getMarks().getType() << " and " << counts;
}

/// Calls embedding_grad with rows of one column: it adds each choice's mark to
/// the count of the chosen expert.
KernelCall CountChoicesOp::getKernelCall() {
  return {"embedding_grad",
          {{"ids", getChoices()}, {"dout", getMarks()}, {"dw", getCounts()}},
          {{"rows", tensorOf(getChoices()).getNumElements()}, {"columns", 1},
           {"vocab", columnsOf(getCounts())}, {"lddo", 1}, {"turned", false},
           {"padding", -1}}};
}

//===----------------------------------------------------------------------===//
// router_loss
//===----------------------------------------------------------------------===//

LogicalResult RouterLossOp::verify() {
  RankedTensorType sums = tensorOf(getSums());
  if (sums.getRank() != 1 || !sums.getElementType().isF32() ||
      getCounts().getType() != sums || getSlopes().getType() != sums ||
      getLoss().getType() != sums.clone({1}))
    return emitOpError("(C1) expects f32 [E] and a loss of f32 [1], but got ")
           << sums << ", " << getCounts().getType() << ", "
           << getSlopes().getType() << " and " << getLoss().getType();
  if (getChosen() < 1)
    return emitOpError("(C2) expects at least 1 choice, but got ")
           << getChosen();
  return success();
}

StringRef RouterLossOp::getReadName(unsigned result) {
  return result == 1 ? "router_loss" : "";
}
bool RouterLossOp::shardLoss(int64_t ranks) {
  setCoefficient(APFloat(getCoefficient().convertToDouble() / double(ranks)));
  return true;
}
bool RouterLossOp::isScalarResult(unsigned result) { return result == 1; }

SmallVector<Value> RouterLossOp::buildRow(OpBuilder &builder,
                                          ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value sums = arguments[0], counts = arguments[1];
  Value rows = a.times(a.sum(counts), 1.0 / static_cast<double>(getChosen()));
  // If all tokens are padding, counts are 0: divide by 1 for a loss of 0.
  Value hasRows = a.compare(arith::CmpFPredicate::OGT, rows, a.number(0));
  Value divisor = a.select(hasRows, rows, a.number(1));
  Value labels = RowStepOp::create(builder, getLoc(), builder.getF32Type(),
                                   "mean_labels");
  const double factor = getCoefficient().convertToDouble() *
                        static_cast<double>(getRowColumns());
  Value perRow = a.div(a.times(labels, factor), divisor);
  Value shares = a.div(counts, a.splat(divisor, counts.getType()));
  Value slopes = a.mul(shares, a.splat(perRow, counts.getType()));
  return {slopes, a.sum(a.mul(sums, slopes))};
}
