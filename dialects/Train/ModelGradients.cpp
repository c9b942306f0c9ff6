// SPDX-License-Identifier: MIT

// One derivative rule per model op, in the order of ModelOps.td. All row ops
// share one: the reverse of their region.

#include "dialects/Train/Train.h"

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

static RankedTensorType asF32(RankedTensorType type) {
  return type.clone(Float32Type::get(type.getContext()));
}

/// A gradient of zero inside a row region.
static Value zeroRow(OpBuilder &b, Location loc, int64_t columns) {
  Value zero = arith::ConstantOp::create(b, loc, b.getF32FloatAttr(0));
  return RowSplatOp::create(
      b, loc, RankedTensorType::get({columns}, b.getF32Type()), zero);
}

/// A gradient of zero: f32 rows without inputs.
static Value zeroLike(OpBuilder &b, Location loc, Value value) {
  RankedTensorType type = tensorOf(value);
  return buildRows(b, loc, {type}, {}, matrixColumns(type), {}, "zero",
                   [&](OpBuilder &inner, ValueRange) -> SmallVector<Value> {
                     return {zeroRow(inner, loc, matrixColumns(type))};
                   })
      ->getResult(0);
}

void qlora::train::buildProductGradient(WeightedProduct product, Tape &tape) {
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

static LogicalResult reverse(WeightedProduct product, Tape &tape) {
  buildProductGradient(product, tape);
  return success();
}

static LogicalResult reverse(AttentionOp attention, Tape &tape) {
  Value q = attention.getQ(), k = attention.getK(), v = attention.getV();
  if (tape.lookup(attention.getLse()))
    return attention.emitOpError("has no derivative of its log-sum-exp, but a "
                                 "gradient reaches it");
  auto grad = AttentionGradOp::create(
      tape.getBuilder(), attention.getLoc(),
      TypeRange{q.getType(), k.getType(), v.getType()}, q, k, v,
      attention.getSegments(), attention.getResult(), attention.getLse(),
      tape.lookup(attention.getResult()), attention.getHeads(),
      attention.getKvHeads(), attention.getHeadDim(), attention.getWindow(),
      attention.getScale());
  tape.add(q, grad.getDq());
  tape.add(k, grad.getDk());
  tape.add(v, grad.getDv());
  return success();
}

/// The loss is the end of the tape: its own gradient is 1, and it is computed
/// again together with that of its operands, so the forward op goes away.
static LogicalResult reverse(HeadLossOp head, Tape &tape) {
  SmallVector<Type> types(head->getResultTypes());
  types.push_back(head.getHidden().getType());
  bool trained = tape.needs(head.getWeight());
  if (trained)
    types.push_back(asF32(tensorOf(head.getWeight())));
  auto grad =
      HeadLossGradOp::create(tape.getBuilder(), head.getLoc(), types,
                             head.getHidden(), head.getWeight(),
                             head.getTargets());
  head->replaceAllUsesWith(grad->getResults().take_front(3));
  tape.add(head.getHidden(), grad.getDhidden());
  if (trained)
    tape.add(head.getWeight(), grad.getDweight());
  return success();
}

/// The operands that need a gradient; an error for one that cannot have any.
static FailureOr<SmallVector<unsigned>> wantedOperands(RowOp op, Tape &tape) {
  SmallVector<unsigned> wanted;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (!tape.needs(operand))
      continue;
    MapKind kind = op.getRowMaps()[i].getKind();
    if (kind != MapKind::Full && kind != MapKind::Column)
      return op->emitOpError("cannot be differentiated with respect to "
                             "operand ")
             << i << ", which every row reads as '" << stringifyMapKind(kind)
             << "'";
    if (!isFloatStorable(operand.getType()))
      return op->emitOpError("cannot be differentiated with respect to "
                             "operand ")
             << i << ", which holds integers: " << operand.getType();
    wanted.push_back(i);
  }
  return wanted;
}

/// The rows of the gradients of `wanted`, of the op's operands and of what
/// flows into its results (null: nothing).
static FailureOr<Operation *> buildReversedRows(RowOp op,
                                                ArrayRef<unsigned> wanted,
                                                ArrayRef<Value> flowing,
                                                OpBuilder &b) {
  SmallVector<Value> inputs(op->getOperands());
  SmallVector<MapAttr> maps = op.getRowMaps();
  auto full = asF32(tensorOf(op->getResult(0)));
  SmallVector<Type> types = llvm::map_to_vector(wanted, [&](unsigned i) -> Type {
    return maps[i].getKind() == MapKind::Full ? op->getOperand(i).getType()
                                              : full;
  });
  for (auto [i, gradient] : llvm::enumerate(flowing)) {
    if (!gradient)
      continue;
    inputs.push_back(gradient);
    maps.push_back(MapAttr::get(
        op->getContext(),
        op.isScalarResult(i) ? MapKind::Scalar : MapKind::Full, 1));
  }
  LogicalResult outcome = success();
  auto build = [&](OpBuilder &inner, ValueRange arguments) {
    ValueRange forward = arguments.take_front(op->getNumOperands());
    ValueRange left = arguments.drop_front(op->getNumOperands());
    SmallVector<Value> seeds(flowing);
    for (Value &seed : seeds)
      if (seed) {
        seed = left.front();
        left = left.drop_front();
      }
    auto rows = buildRowGradient(op, inner, forward, seeds);
    outcome = success(succeeded(rows));
    if (failed(rows))
      return SmallVector<Value>();
    return llvm::map_to_vector(wanted, [&](unsigned i) {
      return (*rows)[i] ? (*rows)[i]
                        : zeroRow(inner, op.getLoc(), op.getRowColumns());
    });
  };
  std::string label = (op->getName().stripDialect() + "_grad").str();
  Operation *rows = buildRows(b, op.getLoc(), types, inputs, op.getRowColumns(),
                              maps, label, build);
  return failed(outcome) ? FailureOr<Operation *>() : rows;
}

/// Differentiates the row region and keeps the operands that need it. The
/// gradient of a `column` operand is formed for every row and then summed.
static LogicalResult reverse(RowOp op, Tape &tape) {
  FailureOr<SmallVector<unsigned>> wanted = wantedOperands(op, tape);
  if (failed(wanted))
    return failure();
  SmallVector<Value> flowing = llvm::map_to_vector(
      op->getResults(), [&](Value result) { return tape.lookup(result); });
  if (wanted->empty() || !llvm::any_of(flowing, [](Value v) { return !!v; }))
    return success();
  OpBuilder &b = tape.getBuilder();
  FailureOr<Operation *> rows = buildReversedRows(op, *wanted, flowing, b);
  if (failed(rows))
    return failure();
  eraseDeadArithmetic(cast<RowsOp>(*rows));
  SmallVector<Value> gradients = simplifyRows(cast<RowsOp>(*rows));
  for (auto [i, gradient] : llvm::zip_equal(*wanted, gradients)) {
    Value operand = op->getOperand(i);
    if (op.getRowMaps()[i].getKind() == MapKind::Column)
      gradient = ColumnSumOp::create(b, op.getLoc(), asF32(tensorOf(operand)),
                                     gradient);
    tape.add(operand, gradient);
  }
  return success();
}

static LogicalResult reverse(SplitOp split, Tape &tape) {
  OpBuilder &b = tape.getBuilder();
  SmallVector<Value> parts;
  for (Value part : split.getParts()) {
    Value gradient = tape.lookup(part);
    parts.push_back(gradient ? gradient : zeroLike(b, split.getLoc(), part));
  }
  tape.add(split.getWhole(),
           ConcatOp::create(b, split.getLoc(), split.getWhole().getType(),
                            parts));
  return success();
}

static LogicalResult reverse(ConcatOp concat, Tape &tape) {
  SmallVector<Type> types(concat.getParts().getTypes());
  auto split = SplitOp::create(tape.getBuilder(), concat.getLoc(), types,
                               tape.lookup(concat.getWhole()));
  for (auto [part, gradient] :
       llvm::zip_equal(concat.getParts(), split.getParts()))
    tape.add(part, gradient);
  return success();
}

namespace {

/// The overload of `reverse` for the op, or for what it is.
template <typename Op>
struct RuleOf : Differentiable::template ExternalModel<RuleOf<Op>, Op> {
  LogicalResult buildGradient(Operation *op, Tape &tape) const {
    return reverse(cast<Op>(op), tape);
  }
};

} // namespace

template <typename... Ops> static void attachRules(MLIRContext *context) {
  (Ops::template attachInterface<RuleOf<Ops>>(*context), ...);
}

void qlora::train::registerModelGradients(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, ModelDialect *) {
    attachRules<EmbeddingOp, LinearOp, AttentionOp, HeadLossOp, RmsNormOp,
                LayerNormOp, RopeOp, ActivationOp, GluOp, AddOp, ScaleOp,
                AddBiasOp, DropoutOp, RowsOp, SplitOp, ConcatOp>(context);
  });
}
