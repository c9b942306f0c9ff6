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

static RankedTensorType tensorOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}
static RankedTensorType asF32(RankedTensorType type) {
  return type.clone(Float32Type::get(type.getContext()));
}

/// A gradient of zero: f32 rows without inputs.
static Value zeroLike(OpBuilder &b, Location loc, Value value) {
  RankedTensorType type = tensorOf(value);
  return buildRows(b, loc, {type}, {}, matrixColumns(type), {}, "zero",
                   [&](OpBuilder &inner, ValueRange) -> SmallVector<Value> {
                     Value zero = arith::ConstantOp::create(
                         inner, loc, inner.getF32FloatAttr(0));
                     auto row = RankedTensorType::get({matrixColumns(type)},
                                                      inner.getF32Type());
                     return {RowSplatOp::create(inner, loc, row, zero)};
                   })
      ->getResult(0);
}

void qlora::train::buildProductGradient(WeightedProduct product, Tape &tape) {
  OpBuilder &b = tape.getBuilder();
  Location loc = product.getLoc();
  Value dy = tape.lookup(product.getProduct());
  if (product.getInit())
    tape.add(product.getInit(), dy);
  auto scale = b.getFloatAttr(b.getF64Type(), product.getScale());
  if (Value weight = product.getWeight(); tape.needs(weight)) {
    Value out = dy, in = product.getX();
    if (product.getLayout() == WeightLayout::InOut)
      std::swap(out, in);
    tape.add(weight, LinearWeightGradOp::create(b, loc, asF32(tensorOf(weight)),
                                                out, in, Value(), scale));
  }
  if (Value x = product.getX(); tape.needs(x))
    tape.add(x, LinearOp::create(b, loc, x.getType(), dy, product.getWeight(),
                                 Value(), product.getScale(), StringAttr(),
                                 turned(product.getLayout())));
}

namespace {

struct EmbeddingGradient
    : Differentiable::ExternalModel<EmbeddingGradient, EmbeddingOp> {
  LogicalResult buildGradient(Operation *op, Tape &tape) const {
    auto embedding = cast<EmbeddingOp>(op);
    Value dy = tape.lookup(embedding.getResult());
    if (tape.needs(embedding.getTable()))
      tape.add(embedding.getTable(),
               EmbeddingGradOp::create(tape.getBuilder(), op->getLoc(),
                                       asF32(tensorOf(embedding.getTable())),
                                       embedding.getIds(), dy));
    return success();
  }
};

struct LinearGradient
    : Differentiable::ExternalModel<LinearGradient, LinearOp> {
  LogicalResult buildGradient(Operation *op, Tape &tape) const {
    buildProductGradient(cast<WeightedProduct>(op), tape);
    return success();
  }
};

struct AttentionGradient
    : Differentiable::ExternalModel<AttentionGradient, AttentionOp> {
  LogicalResult buildGradient(Operation *op, Tape &tape) const {
    auto attention = cast<AttentionOp>(op);
    Value q = attention.getQ(), k = attention.getK(), v = attention.getV();
    auto grad = AttentionGradOp::create(
        tape.getBuilder(), op->getLoc(),
        TypeRange{q.getType(), k.getType(), v.getType()}, q, k, v,
        attention.getSegments(), attention.getResult(), attention.getLse(),
        tape.lookup(attention.getResult()), attention.getHeadsAttr(),
        attention.getKvHeadsAttr(), attention.getHeadDimAttr(),
        attention.getWindowAttr(), attention.getScaleAttr());
    tape.add(q, grad.getDq());
    tape.add(k, grad.getDk());
    tape.add(v, grad.getDv());
    return success();
  }
};

/// The loss is the end of the tape: its own gradient is 1, and it is computed
/// again together with that of its operands, so the forward op goes away.
struct HeadLossGradient
    : Differentiable::ExternalModel<HeadLossGradient, HeadLossOp> {
  LogicalResult buildGradient(Operation *op, Tape &tape) const {
    auto head = cast<HeadLossOp>(op);
    SmallVector<Type> types(op->getResultTypes());
    types.push_back(head.getHidden().getType());
    bool trained = tape.needs(head.getWeight());
    if (trained)
      types.push_back(asF32(tensorOf(head.getWeight())));
    auto grad = HeadLossGradOp::create(tape.getBuilder(), op->getLoc(), types,
                                       head.getHidden(), head.getWeight(),
                                       head.getTargets());
    op->replaceAllUsesWith(grad->getResults().take_front(3));
    tape.add(head.getHidden(), grad.getDhidden());
    if (trained)
      tape.add(head.getWeight(), grad.getDweight());
    return success();
  }
};

/// Differentiates the row region and keeps the operands that need it. The
/// gradient of a `column` operand is formed for every row and then summed.
template <typename Op>
struct RowGradient : Differentiable::template ExternalModel<RowGradient<Op>, Op> {
  LogicalResult buildGradient(Operation *op, Tape &tape) const {
    auto rowOp = cast<RowOp>(op);
    OpBuilder &b = tape.getBuilder();
    int64_t columns = rowOp.getRowColumns();
    SmallVector<MapAttr> maps = rowOp.getRowMaps();
    SmallVector<Value> inputs(op->getOperands());
    SmallVector<unsigned> wanted, flowing;
    SmallVector<Type> types;
    for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
      if (!tape.needs(operand))
        continue;
      MapKind kind = maps[i].getKind();
      if (kind != MapKind::Full && kind != MapKind::Column)
        return op->emitOpError("cannot be differentiated with respect to "
                               "operand ")
               << i << ", which every row reads as '"
               << stringifyMapKind(kind) << "'";
      if (!isFloatStorable(operand.getType()))
        return op->emitOpError("cannot be differentiated with respect to "
                               "operand ")
               << i << ", which holds integers: " << operand.getType();
      wanted.push_back(i);
      RankedTensorType full = tensorOf(op->getResult(0));
      types.push_back(kind == MapKind::Full ? tensorOf(operand) : asF32(full));
    }
    for (Value result : op->getResults()) {
      if (Value gradient = tape.lookup(result)) {
        unsigned number = cast<OpResult>(result).getResultNumber();
        flowing.push_back(number);
        inputs.push_back(gradient);
        maps.push_back(MapAttr::get(op->getContext(),
                                    rowOp.isScalarResult(number)
                                        ? MapKind::Scalar
                                        : MapKind::Full,
                                    1));
      }
    }
    if (wanted.empty() || flowing.empty())
      return success();
    LogicalResult outcome = success();
    unsigned operands = op->getNumOperands();
    std::string label = (op->getName().stripDialect() + "_grad").str();
    Operation *grad = buildRows(
        b, op->getLoc(), types, inputs, columns, maps, label,
        [&](OpBuilder &inner, ValueRange arguments) {
          SmallVector<Value> seeds(op->getNumResults());
          for (auto [i, result] : llvm::enumerate(flowing))
            seeds[result] = arguments[operands + i];
          auto rows = buildRowGradient(
              op, inner, arguments.take_front(operands), seeds);
          outcome = success(succeeded(rows));
          if (failed(rows))
            return SmallVector<Value>();
          return llvm::map_to_vector(wanted, [&](unsigned i) -> Value {
            if ((*rows)[i])
              return (*rows)[i];
            Value zero = arith::ConstantOp::create(inner, op->getLoc(),
                                                   inner.getF32FloatAttr(0));
            return RowSplatOp::create(
                inner, op->getLoc(),
                RankedTensorType::get({columns}, inner.getF32Type()), zero);
          });
        });
    if (failed(outcome))
      return failure();
    eraseDeadArithmetic(cast<RowsOp>(grad));
    SmallVector<Value> gradients = simplifyRows(cast<RowsOp>(grad));
    for (auto [operand, gradient] : llvm::zip_equal(wanted, gradients)) {
      if (maps[operand].getKind() == MapKind::Column)
        gradient = ColumnSumOp::create(
            b, op->getLoc(), asF32(tensorOf(op->getOperand(operand))),
            gradient);
      tape.add(op->getOperand(operand), gradient);
    }
    return success();
  }
};

struct SplitGradient
    : Differentiable::ExternalModel<SplitGradient, SplitOp> {
  LogicalResult buildGradient(Operation *op, Tape &tape) const {
    auto split = cast<SplitOp>(op);
    OpBuilder &b = tape.getBuilder();
    SmallVector<Value> parts;
    for (Value part : split.getParts()) {
      Value gradient = tape.lookup(part);
      parts.push_back(gradient ? gradient : zeroLike(b, op->getLoc(), part));
    }
    tape.add(split.getWhole(),
             ConcatOp::create(b, op->getLoc(), split.getWhole().getType(),
                              parts));
    return success();
  }
};

struct ConcatGradient
    : Differentiable::ExternalModel<ConcatGradient, ConcatOp> {
  LogicalResult buildGradient(Operation *op, Tape &tape) const {
    auto concat = cast<ConcatOp>(op);
    SmallVector<Type> types(concat.getParts().getTypes());
    auto split = SplitOp::create(tape.getBuilder(), op->getLoc(), types,
                                 tape.lookup(concat.getWhole()));
    for (auto [part, gradient] :
         llvm::zip_equal(concat.getParts(), split.getParts()))
      tape.add(part, gradient);
    return success();
  }
};

} // namespace

void qlora::train::registerModelGradients(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, ModelDialect *) {
    EmbeddingOp::attachInterface<EmbeddingGradient>(*context);
    LinearOp::attachInterface<LinearGradient>(*context);
    AttentionOp::attachInterface<AttentionGradient>(*context);
    HeadLossOp::attachInterface<HeadLossGradient>(*context);
    RmsNormOp::attachInterface<RowGradient<RmsNormOp>>(*context);
    LayerNormOp::attachInterface<RowGradient<LayerNormOp>>(*context);
    RopeOp::attachInterface<RowGradient<RopeOp>>(*context);
    SwigluOp::attachInterface<RowGradient<SwigluOp>>(*context);
    ActivationOp::attachInterface<RowGradient<ActivationOp>>(*context);
    AddOp::attachInterface<RowGradient<AddOp>>(*context);
    AddBiasOp::attachInterface<RowGradient<AddBiasOp>>(*context);
    DropoutOp::attachInterface<RowGradient<DropoutOp>>(*context);
    RowsOp::attachInterface<RowGradient<RowsOp>>(*context);
    SplitOp::attachInterface<SplitGradient>(*context);
    ConcatOp::attachInterface<ConcatGradient>(*context);
  });
}
