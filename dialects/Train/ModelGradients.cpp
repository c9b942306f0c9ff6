// SPDX-License-Identifier: MIT

// One derivative rule per model op, in the order of ModelOps.td;
// ExchangeGradients.cpp has the rules of communication. RowOpGradient.cpp has
// the rule that all row ops share.

#include "dialects/Model/Arithmetic.h"
#include "dialects/Train/GradientRules.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

void Tape::add(Value value, Value gradient) {
  if (!needs(value))
    return;
  Value &slot = gradients[value];
  slot = slot ? Value(AddOp::create(builder, gradient.getLoc(), slot, gradient))
              : gradient;
}

Value Tape::take(Value value) {
  Value gradient = lookup(value);
  gradients.erase(value);
  return gradient;
}

static RankedTensorType asF32(RankedTensorType type) {
  return type.clone(Float32Type::get(type.getContext()));
}

void qlora::train::buildProductGradient(WeightedMatmul product, Tape &tape) {
  OpBuilder &b = tape.getBuilder();
  Location loc = product.getLoc();
  Value dy = tape.lookup(product.getProduct());
  if (product.getInit())
    tape.add(product.getInit(), dy);
  if (Value weight = product.getWeight(); tape.needs(weight)) {
    Value out = dy, in = product.getX();
    if (product.getLayout() == WeightLayout::InOut)
      std::swap(out, in);
    tape.add(weight, LinearWeightGradOp::create(b, loc, asF32(tensorOf(weight)),
                                                out, in, Value(),
                                                product.getScale()));
  }
  if (Value x = product.getX(); tape.needs(x))
    tape.add(x, LinearOp::create(b, loc, x.getType(), dy, product.getWeight(),
                                 Value(), product.getScale(), StringAttr(),
                                 turned(product.getLayout())));
}

static LogicalResult reverse(EmbeddingOp embedding, Tape &tape) {
  Value table = embedding.getTable();
  if (tape.needs(table))
    tape.add(table, EmbeddingGradOp::create(
                        tape.getBuilder(), embedding.getLoc(),
                        asF32(tensorOf(table)), embedding.getIds(),
                        tape.lookup(embedding.getResult()),
                        embedding.getPadding(),
                        embedding.getLayout() == WeightLayout::OutIn));
  return success();
}

static LogicalResult reverse(WeightedMatmul product, Tape &tape) {
  buildProductGradient(product, tape);
  return success();
}

static LogicalResult reverse(RouteOp route, Tape &tape) {
  if (Value flowing = tape.lookup(route.getWeights()))
    tape.add(route.getLogits(),
             RouteGradOp::create(tape.getBuilder(), route.getLoc(),
                                 route.getLogits().getType(), route.getLogits(),
                                 route.getChoices(), flowing,
                                 route.getOverAll()));
  return success();
}

/// No gradient flows through the order of rows, or through counts.
static LogicalResult reverse(SortByExpertOp, Tape &) { return success(); }
static LogicalResult reverse(CountChoicesOp, Tape &) { return success(); }

/// Rule of an op that moves tokens to rows or back; `Back` is its transpose.
/// `tokens` and `rows` are the operands of choice_grad; null means dy.
template <typename Back, typename Op>
static LogicalResult reverseMove(Op op, Value tokens, Value rows, Tape &tape) {
  OpBuilder &b = tape.getBuilder();
  Value dy = tape.lookup(op.getResult());
  if (Value x = op.getX(); tape.needs(x))
    tape.add(x, Back::create(b, op.getLoc(), x.getType(), dy, op.getOrder(),
                             op.getPlaces(), op.getWeights()));
  if (Value weights = op.getWeights(); weights && tape.needs(weights))
    tape.add(weights, ChoiceGradOp::create(b, op.getLoc(), weights.getType(),
                                           tokens ? tokens : dy,
                                           rows ? rows : dy, op.getPlaces()));
  return success();
}
static LogicalResult reverse(GatherRowsOp op, Tape &tape) {
  return reverseMove<CombineRowsOp>(op, op.getX(), Value(), tape);
}
static LogicalResult reverse(CombineRowsOp op, Tape &tape) {
  return reverseMove<GatherRowsOp>(op, Value(), op.getX(), tape);
}

static LogicalResult reverse(GroupedLinearOp op, Tape &tape) {
  OpBuilder &b = tape.getBuilder();
  Value dy = tape.lookup(op.getResult());
  if (op.getInit())
    tape.add(op.getInit(), dy);
  if (Value weight = op.getWeight(); tape.needs(weight)) {
    Value out = dy, in = op.getX();
    if (op.getLayout() == WeightLayout::InOut)
      std::swap(out, in);
    tape.add(weight, GroupedWeightGradOp::create(
                         b, op.getLoc(), asF32(tensorOf(weight)), out, in,
                         op.getOffsets(), Value(), op.getScale(),
                         op.getGroupsLast(), op.getShared()));
  }
  if (Value x = op.getX(); tape.needs(x))
    tape.add(x, GroupedLinearOp::create(b, op.getLoc(), x.getType(), dy,
                                        op.getWeight(), op.getOffsets(),
                                        Value(), op.getScale(), StringAttr(),
                                        turned(op.getLayout()),
                                        op.getGroupsLast(), op.getShared()));
  return success();
}

static LogicalResult reverse(AttentionOp attention, Tape &tape) {
  Value q = attention.getQ(), k = attention.getK(), v = attention.getV();
  if (tape.lookup(attention.getLse()))
    return attention.emitOpError("has no derivative of its log-sum-exp, but a "
                                 "gradient reaches it");
  if (attention.getSinks() && tape.needs(attention.getSinks()))
    return attention.emitOpError("has no derivative with respect to its "
                                 "sinks; do not train them");
  auto grad = AttentionGradOp::create(
      tape.getBuilder(), attention.getLoc(),
      TypeRange{q.getType(), k.getType(), v.getType()}, q, k, v,
      attention.getSegments(), attention.getResult(), attention.getLse(),
      tape.lookup(attention.getResult()), attention.getHeads(),
      attention.getKvHeads(), attention.getHeadDim(), attention.getWindow(),
      attention.getScale(), attention.getCap());
  tape.add(q, grad.getDq());
  tape.add(k, grad.getDk());
  tape.add(v, grad.getDv());
  return success();
}

/// Multiplies sequence i of a batch by element i of `numbers`.
static Value scaleSequences(OpBuilder &b, Location loc, Value x,
                            Value numbers) {
  RankedTensorType type = tensorOf(x);
  const int64_t columns = matrixColumns(type);
  auto map = [&](MapKind kind, int64_t group) {
    return MapAttr::get(b.getContext(), kind, group);
  };
  return buildRows(
             b, loc, {type}, {x, numbers}, columns,
             {map(MapKind::Full, 1),
              map(MapKind::Scalar, matrixRows(type) / columnsOf(numbers))},
             "scale_lines",
             [&](OpBuilder &inner, ValueRange row) -> SmallVector<Value> {
               Arithmetic a(inner, loc);
               return {a.mul(row[0], a.splat(row[1], row[0].getType()))};
             })
      ->getResult(0);
}

/// Replaces the forward op by one that computes losses and gradients together,
/// so that logits are computed only once. A single loss of the batch has the
/// gradient 1. With a loss per sequence, the losses' gradients are known later
/// and then multiply the gradients computed here.
static LogicalResult reverse(HeadLossOp head, Tape &tape) {
  Value flowing = tape.lookup(head.getLoss());
  SmallVector<Type> types(head->getResultTypes());
  types.push_back(head.getHidden().getType());
  bool trained = tape.needs(head.getWeight());
  bool replaces = !head.getReplaced().empty();
  if (trained && (flowing || replaces))
    return head.emitOpError("cannot train its weight if ")
           << (flowing ? "each sequence has its own loss"
                       : "some of its logits are replaced")
           << "; remove the LM head from modules_to_save";
  if (trained)
    types.push_back(asF32(tensorOf(head.getWeight())));
  if (replaces)
    types.push_back(head.getReplaced().front().getType());
  OpBuilder before(head), &b = flowing ? before : tape.getBuilder();
  auto grad = HeadLossGradOp::create(
      b, head.getLoc(), types, head.getHidden(), head.getWeight(),
      head.getTargets(), head.getReplaced(), head.getCap(),
      head.getLabelSmoothing(), head.getOwnProbability());
  if (flowing)
    copyStage(head, grad);
  head->replaceAllUsesWith(grad->getResults().take_front(3));
  auto ofSum = [&](Value gradient) {
    return flowing ? scaleSequences(tape.getBuilder(), head.getLoc(), gradient,
                                    flowing)
                   : gradient;
  };
  tape.add(head.getHidden(), ofSum(grad.getDhidden()));
  if (trained)
    tape.add(head.getWeight(), grad.getDtrained());
  if (replaces)
    tape.add(head.getReplaced().front(), ofSum(grad.getDtrained()));
  return success();
}

/// Preference losses compute their gradients themselves: the result `slopes`.
static LogicalResult reverse(DpoLossOp loss, Tape &tape) {
  tape.add(loss.getLosses(), loss.getSlopes());
  return success();
}
static LogicalResult reverse(KtoLossOp loss, Tape &tape) {
  tape.add(loss.getLosses(), loss.getSlopes());
  return success();
}
static LogicalResult reverse(OrpoLossOp loss, Tape &tape) {
  tape.add(loss.getLosses(), loss.getSlopes());
  tape.add(loss.getPromptLosses(), loss.getPromptSlopes());
  return success();
}

static LogicalResult reverse(RouterLossOp loss, Tape &tape) {
  tape.add(loss.getSums(), loss.getSlopes());
  return success();
}

/// Each row gets the gradient of the sum.
static LogicalResult reverse(ColumnSumOp sum, Tape &tape) {
  Value dy = tape.lookup(sum.getResult());
  Operation *rows = buildRows(
      tape.getBuilder(), sum.getLoc(), {sum.getX().getType()}, {dy},
      columnsOf(dy), {MapAttr::get(sum.getContext(), MapKind::Column, 1)},
      "column_sum_grad", [](OpBuilder &, ValueRange row) -> SmallVector<Value> {
        return {row[0]};
      });
  tape.add(sum.getX(), rows->getResult(0));
  return success();
}

static LogicalResult reverse(RowOp op, Tape &tape) {
  return buildRowsGradient(op, tape);
}

static LogicalResult reverse(SplitOp split, Tape &tape) {
  OpBuilder &b = tape.getBuilder();
  SmallVector<Value> parts;
  for (Value part : split.getParts()) {
    Value gradient = tape.lookup(part);
    parts.push_back(gradient ? gradient
                             : buildZeros(b, split.getLoc(), tensorOf(part)));
  }
  tape.add(split.getWhole(),
           ConcatOp::create(b, split.getLoc(), split.getWhole().getType(),
                            parts, split.getRows()));
  return success();
}

static LogicalResult reverse(TransposeRowsOp transpose, Tape &tape) {
  Value x = transpose.getX();
  tape.add(x, TransposeRowsOp::create(tape.getBuilder(), transpose.getLoc(),
                                      x.getType(),
                                      tape.lookup(transpose.getResult()),
                                      columnsOf(x) / transpose.getInner()));
  return success();
}

static LogicalResult reverse(ConcatOp concat, Tape &tape) {
  SmallVector<Type> types(concat.getParts().getTypes());
  // Gradients of weights are f32, whatever the type of the weights.
  Value whole = tape.lookup(concat.getWhole());
  for (Type &type : types)
    type = cast<RankedTensorType>(type).clone(tensorOf(whole).getElementType());
  auto split = SplitOp::create(tape.getBuilder(), concat.getLoc(), types, whole,
                               concat.getRows());
  for (auto [part, gradient] :
       llvm::zip_equal(concat.getParts(), split.getParts()))
    tape.add(part, gradient);
  return success();
}

void qlora::train::registerModelGradients(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, ModelDialect *) {
    registerExchangeGradients(context);
    attachRules<EmbeddingOp, LinearOp, AttentionOp, HeadLossOp, DpoLossOp,
                KtoLossOp, OrpoLossOp, RouterProbsOp, RouterLossOp,
                CountChoicesOp, ColumnSumOp, RmsNormOp, LayerNormOp, RopeOp,
                ActivationOp, GluOp, AddOp, ScaleOp, AddBiasOp, MagnitudeOp,
                GateRowsOp, TokenListOp, MatchTokensOp, ScaleRowsOp, DropoutOp,
                NoiseOp, RowsOp, SplitOp, ConcatOp, RouteOp, SortByExpertOp,
                GatherRowsOp, CombineRowsOp, TransposeRowsOp, GroupedLinearOp>(
        context, [](auto op, Tape &tape) { return reverse(op, tape); });
  });
}
