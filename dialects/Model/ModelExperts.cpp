// SPDX-License-Identifier: MIT

// Verifiers and kernel calls of the expert ops (labels as in
// ModelExpertOps.td).

#include "dialects/Model/Model.h"

using namespace mlir;
using namespace qlora::model;

using A = KernelArgument;

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
          {{A::Operand, 0}, {A::Result, 0}, {A::Result, 1}},
          {matrixRows(logits), matrixColumns(logits), columnsOf(getWeights()),
           matrixColumns(logits), getOverAll()},
          {{3, 0}}};
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
          {{A::Operand, 0},
           {A::Result, 0},
           {A::Result, 1},
           {A::Result, 2},
           {A::Result, 3},
           getOwnOffsets() ? A{A::Result, 4} : A{A::Absent}},
          {tensorOf(getChoices()).getNumElements(),
           columnsOf(getOffsets()) - 1, int64_t(getRanks())},
          {}};
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

/// Returns the call of a kernel that moves rows. Operand number `index` has the
/// position of each result row in x.
template <typename Op>
static KernelCall movingCall(Op op, StringRef kernel, unsigned index) {
  int64_t width = columnsOf(op.getX());
  RankedTensorType order = tensorOf(op.getOrder());
  return {kernel,
          {{A::Operand, 0},
           {A::Operand, index},
           op.getWeights() ? A{A::Operand, 3} : A{A::Absent},
           {A::Result, 0}},
          {matrixRows(order), matrixColumns(order), width, width, width},
          {{3, 0}, {4, 3}}};
}

LogicalResult GatherRowsOp::verify() {
  return verifyMoved(*this, getX(), getResult());
}
LogicalResult CombineRowsOp::verify() {
  return verifyMoved(*this, getResult(), getX());
}
KernelCall GatherRowsOp::getKernelCall() {
  return movingCall(*this, "gather_rows", 1);
}
KernelCall CombineRowsOp::getKernelCall() {
  return movingCall(*this, "combine_rows", 2);
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
  RankedTensorType x = tensorOf(getX());
  int64_t width = matrixColumns(x);
  return {"transpose_rows",
          {{A::Operand, 0}, {A::Result, 0}},
          {matrixRows(x), width, static_cast<int64_t>(getInner()), width,
           width},
          {{3, 0}, {4, 1}}};
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
  auto product = cast<WeightedMatmul>(getOperation());
  RankedTensorType w = product.getWeightType();
  auto stored = dyn_cast<QuantizedType>(w.getElementType());
  return {"grouped_matmul",
          {{A::Operand, 0},
           {A::Operand, 1},
           {A::Operand, 2},
           {A::Result, 0},
           {A::Workspace}},
          {matrixRows(tensorOf(getX())), getGroups(), w.getDimSize(0),
           w.getDimSize(1), columnsOf(getX()), columnsOf(getResult()),
           getLayout() == WeightLayout::OutIn, getGroupsLast(),
           stored ? stored.getBlock() : 0, stored && stored.getDoubleQuant(),
           panelColumns(columnsOf(getResult())),
           doubleBits(getScale().convertToDouble()),
           doubleBits(getInit() ? 1.0 : 0.0), int64_t(getShared())},
          {{4, 0}, {5, 3}}};
}
