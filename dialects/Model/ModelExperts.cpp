// SPDX-License-Identifier: MIT

// Verifiers and kernel calls of the expert ops (labels as in
// ModelExpertOps.td).

#include "dialects/Model/Model.h"

using namespace mlir;
using namespace qlora::model;

/// Returns whether `value` is i32 of this shape.
static bool isIndex(Value value, ArrayRef<int64_t> shape) {
  RankedTensorType type = tensorOf(value);
  return type.getElementType().isInteger(32) && type.getShape() == shape;
}

//===----------------------------------------------------------------------===//
// route, sort_by_expert
//===----------------------------------------------------------------------===//

LogicalResult RouteOp::verify() {
  RankedTensorType logits = tensorOf(getLogits()),
                   weights = tensorOf(getWeights());
  if (logits.getRank() != 3 || weights.getRank() != 3 ||
      !weights.getElementType().isF32() ||
      weights.getShape().drop_back() != logits.getShape().drop_back() ||
      !isIndex(getChoices(), weights.getShape()))
    return emitOpError("(C1) expects f32 weights and i32 choices for the "
                       "tokens of ")
           << logits << ", but got " << weights << " and "
           << getChoices().getType();
  if (matrixColumns(weights) > matrixColumns(logits))
    return emitOpError("(C2) expects at most ")
           << matrixColumns(logits) << " choices, one per expert, but got "
           << matrixColumns(weights);
  return success();
}

bool RouteOp::isFullPrecisionResult(unsigned index) { return index == 0; }

KernelCall RouteOp::getKernelCall() {
  RankedTensorType logits = tensorOf(getLogits());
  return {"route",
          {{"logits", getLogits()}, {"weights", getWeights()},
           {"choices", getChoices()}},
          {{"rows", matrixRows(logits)}, {"experts", matrixColumns(logits)},
           {"chosen", columnsOf(getWeights())}, {"over_all", getOverAll()}}};
}

static LogicalResult verifyOwnOffsets(SortByExpertOp sort) {
  const int64_t experts = columnsOf(sort.getOffsets()) - 1;
  const int64_t ranks = sort.getRanks();
  Value own = sort.getOwnOffsets();
  if (ranks >= 1 && experts % ranks == 0 && (ranks > 1) == (own != nullptr) &&
      (!own || isIndex(own, {experts / ranks + 1})))
    return success();
  return sort.emitOpError("(C2) expects ranks that divide ")
         << experts << " experts, and own_offsets if ranks > 1, but got "
         << ranks;
}

LogicalResult SortByExpertOp::verify() {
  ArrayRef<int64_t> choices = tensorOf(getChoices()).getShape();
  if (choices.size() == 3 && isIndex(getChoices(), choices) &&
      isIndex(getOrder(), choices) && isIndex(getPlaces(), choices) &&
      isIndex(getExperts(), choices) &&
      tensorOf(getOffsets()).getRank() == 1 && columnsOf(getOffsets()) > 1 &&
      isIndex(getOffsets(), tensorOf(getOffsets()).getShape()))
    return verifyOwnOffsets(*this);
  return emitOpError("(C1) expects i32 [B, T, k] four times and offsets "
                     "[E + 1], but got ")
         << getChoices().getType() << ", " << getOrder().getType() << ", "
         << getPlaces().getType() << ", " << getExperts().getType() << " and "
         << getOffsets().getType();
}

KernelCall SortByExpertOp::getKernelCall() {
  return {"sort_by_expert",
          {{"choices", getChoices()}, {"order", getOrder()},
           {"places", getPlaces()}, {"sorted", getExperts()},
           {"offsets", getOffsets()}, {"own_offsets", getOwnOffsets()}},
          {{"rows", tensorOf(getChoices()).getNumElements()},
           {"experts", columnsOf(getOffsets()) - 1}, {"ranks", getRanks()}}};
}

SmallVector<Value> SortByExpertOp::shardGroups(OpBuilder &b, Value rows,
                                               int64_t ranks) {
  RankedTensorType offsets = tensorOf(getOffsets());
  auto sort = SortByExpertOp::create(
      b, getLoc(), rows.getType(), rows.getType(), rows.getType(), offsets,
      offsets.clone({(columnsOf(getOffsets()) - 1) / ranks + 1}), rows,
      uint64_t(ranks));
  return SmallVector<Value>(sort->getResults());
}

//===----------------------------------------------------------------------===//
// gather_rows, combine_rows
//===----------------------------------------------------------------------===//

template <typename Op>
static LogicalResult verifyMoved(Op op, Value tokens, Value rows) {
  ArrayRef<int64_t> order = tensorOf(op.getOrder()).getShape();
  SmallVector<int64_t> sorted(order);
  sorted.push_back(columnsOf(tokens));
  SmallVector<int64_t> single(order.drop_back());
  single.push_back(columnsOf(tokens));
  if (order.size() != 3 || !isIndex(op.getOrder(), order) ||
      !isIndex(op.getPlaces(), order) ||
      tensorOf(tokens).getShape() != ArrayRef<int64_t>(single) ||
      tensorOf(rows) != tensorOf(tokens).clone(sorted))
    return op.emitOpError("(C1) expects [B, T, C] and [B, T, k, C] with i32 "
                          "[B, T, k], but got ")
           << tokens.getType() << " and " << rows.getType() << " with "
           << op.getOrder().getType() << " and " << op.getPlaces().getType();
  Value weights = op.getWeights();
  if (weights && (!tensorOf(weights).getElementType().isF32() ||
                  tensorOf(weights).getShape() != order))
    return op.emitOpError("(C2) expects f32 weights like ")
           << op.getOrder().getType() << ", but got " << weights.getType();
  return success();
}

/// Returns the call of a kernel that moves rows. `position` has the position of
/// each result row in x.
template <typename Op>
static KernelCall movingCall(Op op, StringRef kernel, CallOperand position) {
  RankedTensorType order = tensorOf(op.getOrder());
  return {kernel,
          {{"x", op.getX()}, position, {"weights", op.getWeights()},
           {"out", op.getResult()}},
          {{"rows", matrixRows(order)}, {"chosen", matrixColumns(order)},
           {"columns", columnsOf(op.getX())}}};
}

LogicalResult GatherRowsOp::verify() {
  return verifyMoved(*this, getX(), getResult());
}
LogicalResult CombineRowsOp::verify() {
  return verifyMoved(*this, getResult(), getX());
}
KernelCall GatherRowsOp::getKernelCall() {
  return movingCall(*this, "gather_rows", {"order", getOrder()});
}
KernelCall CombineRowsOp::getKernelCall() {
  return movingCall(*this, "combine_rows", {"places", getPlaces()});
}

LogicalResult TransposeRowsOp::verify() {
  int64_t inner = getInner();
  if (inner < 1 || columnsOf(getX()) % inner ||
      getResult().getType() != getX().getType())
    return emitOpError("(C1) expects a positive divisor of ")
           << columnsOf(getX()) << " and the type of x, but got " << inner
           << " and " << getResult().getType();
  return success();
}

KernelCall TransposeRowsOp::getKernelCall() {
  return {"transpose_rows",
          {{"x", getX()}, {"out", getResult()}},
          {{"rows", matrixRows(tensorOf(getX()))},
           {"columns", columnsOf(getX())}, {"inner", getInner()}}};
}

//===----------------------------------------------------------------------===//
// grouped_linear
//===----------------------------------------------------------------------===//

int64_t GroupedLinearOp::getGroups() { return columnsOf(getOffsets()) - 1; }
unsigned GroupedLinearOp::getGroupDimension() { return getGroupsLast(); }

LogicalResult GroupedLinearOp::verify() {
  RankedTensorType weight = tensorOf(getWeight()), x = tensorOf(getX()),
                   y = tensorOf(getResult()), offsets = tensorOf(getOffsets());
  auto product = cast<WeightedMatmul>(getOperation());
  if (offsets.getRank() != 1 || !isIndex(getOffsets(), offsets.getShape()) ||
      getGroups() < 1 || weight.getRank() != 2 ||
      weight.getDimSize(getGroupDimension()) % getGroups())
    return emitOpError("(C4) expects i32 offsets of E + 1 groups that divide "
                       "the weight, but got ")
           << offsets << " and " << weight;
  if (columnsOf(getX()) != product.getInWidth())
    return emitOpError("(C1) expects x with ")
           << product.getInWidth() << " columns for " << weight << " in "
           << getGroups() << " groups, but got " << x;
  if (matrixColumns(y) != product.getOutWidth() ||
      y.getShape().drop_back() != x.getShape().drop_back())
    return emitOpError("(C2) expects rows of ")
           << product.getOutWidth() << " columns for " << x << ", but got "
           << y;
  if (getInit() && getInit().getType() != y)
    return emitOpError("(C3) expects init of type ") << y;
  if (getGroupsLast() && isa<QuantizedType>(weight.getElementType()))
    return emitOpError("(C5) expects a weight that is not quantized with "
                       "groups_last");
  return success();
}

KernelCall GroupedLinearOp::getKernelCall() {
  RankedTensorType w = tensorOf(getWeight());
  return {"grouped_matmul",
          {{"a", getX()}, {"w", getWeight()}, {"offsets", getOffsets()},
           {"c", getResult()}},
          {{"m", matrixRows(tensorOf(getX()))}, {"groups", getGroups()},
           {"rows", w.getDimSize(0)}, {"columns", w.getDimSize(1)},
           {"transpose_w", getLayout() == WeightLayout::OutIn},
           {"groups_last", getGroupsLast()},
           {"panel_columns", panelColumns(columnsOf(getResult()))},
           {"alpha", getScale()}, {"beta", getInit() ? 1.0 : 0.0},
           {"shared", getShared()}}};
}
