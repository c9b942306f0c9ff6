// SPDX-License-Identifier: MIT

// The arithmetic of every row op of the model dialect, written only here.
// Kernels are generated and gradients derived from it.

#include "dialects/Model/Arithmetic.h"

#include "llvm/Support/MathExtras.h"

#include <cmath>

using namespace mlir;
using namespace qlora::model;

//===----------------------------------------------------------------------===//
// rms_norm: x * rsqrt(mean(x^2) + epsilon) * (offset + weight)
//===----------------------------------------------------------------------===//

int64_t RmsNormOp::getRowColumns() { return columnsOf(getWeight()); }

SmallVector<MapAttr> RmsNormOp::getRowMaps() {
  return {mapOf(*this, MapKind::Full), mapOf(*this, MapKind::Column)};
}

SmallVector<Value> RmsNormOp::buildRow(OpBuilder &builder,
                                       ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value x = arguments[0], weight = arguments[1];
  Value mean = a.mean(a.mul(x, x));
  Value scale = a.rsqrt(a.add(mean, a.number(getEpsilon().convertToDouble())));
  if (double offset = getOffset().convertToDouble())
    weight = a.add(weight, a.constant(offset, weight.getType()));
  return {a.mul(a.mul(x, a.splat(scale, x.getType())), weight)};
}

//===----------------------------------------------------------------------===//
// layer_norm: (x - mean) * rsqrt(mean((x - mean)^2) + epsilon) * weight + bias
//===----------------------------------------------------------------------===//

int64_t LayerNormOp::getRowColumns() { return columnsOf(getWeight()); }

SmallVector<MapAttr> LayerNormOp::getRowMaps() {
  return {mapOf(*this, MapKind::Full), mapOf(*this, MapKind::Column),
          mapOf(*this, MapKind::Column)};
}

SmallVector<Value> LayerNormOp::buildRow(OpBuilder &builder,
                                         ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value x = arguments[0], weight = arguments[1], bias = arguments[2];
  Type row = x.getType();
  // Not mean(x^2) - mean^2 as the variance, which would lose precision.
  Value centered = a.sub(x, a.splat(a.mean(x), row));
  Value epsilon = a.number(getEpsilon().convertToDouble());
  Value scale = a.rsqrt(a.add(a.mean(a.mul(centered, centered)), epsilon));
  return {a.add(a.mul(a.mul(centered, a.splat(scale, row)), weight), bias)};
}

//===----------------------------------------------------------------------===//
// rope_table: cos and sin of position * frequency
//===----------------------------------------------------------------------===//

SmallVector<MapAttr> RopeTableOp::getRowMaps() {
  return SmallVector<MapAttr>(getLengths() ? 2 : 1,
                              mapOf(*this, MapKind::Scalar));
}

/// Returns a constant row: `values` in the rotated columns, `rest` in others.
static Value turnedRow(OpBuilder &builder, RopeTableOp op,
                       SmallVector<float> values, float rest) {
  values.resize(op.getRowColumns(), rest);
  auto row = RankedTensorType::get({op.getRowColumns()}, builder.getF32Type());
  return RowConstantOp::create(builder, op.getLoc(), row, values);
}

/// Returns the frequencies for segments longer than the original length. With R
/// rotated columns, dynamic NTK changes the base b to b s^(R / (R - 2)). This
/// multiplies the frequency b^(-2i / R) by s^(-2i / (R - 2)).
static Value longFrequencies(OpBuilder &builder, RopeTableOp op, Value length,
                             Value frequencies) {
  if (std::optional<ArrayRef<float>> beyond = op.getLongFrequencies())
    return turnedRow(builder, op, SmallVector<float>(*beyond), 0);
  Arithmetic a(builder, op.getLoc());
  const double factor = op.getDynamicFactor().convertToDouble();
  const double original = op.getOriginalLength();
  Value stretch = a.sub(a.div(a.mul(a.number(factor), length),
                              a.number(original)),
                        a.number(factor - 1));
  Value log = math::LogOp::create(builder, op.getLoc(), stretch);
  const size_t rotated = op.getFrequencies().size();
  SmallVector<float> exponents;
  for (size_t i = 0; i < rotated; ++i)
    exponents.push_back(static_cast<float>(
        -2.0 * static_cast<double>(i % (rotated / 2)) /
        static_cast<double>(rotated - 2)));
  Value exponent = a.mul(a.splat(log, frequencies.getType()),
                         turnedRow(builder, op, exponents, 0));
  return a.mul(frequencies,
               math::ExpOp::create(builder, op.getLoc(), exponent));
}

SmallVector<Value> RopeTableOp::buildRow(OpBuilder &builder,
                                         ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  // Columns that are not rotated have angle 0, and no attention factor.
  Value frequencies =
      turnedRow(builder, *this, SmallVector<float>(getFrequencies()), 0);
  Type row = frequencies.getType();
  if (getLengths()) {
    Value isLong = a.compare(
        arith::CmpFPredicate::OGT, a.splat(arguments[1], row),
        a.constant(static_cast<double>(getOriginalLength()), row));
    frequencies = a.select(
        isLong, longFrequencies(builder, *this, arguments[1], frequencies),
        frequencies);
  }
  Value angle = a.mul(a.splat(arguments[0], row), frequencies);
  Value cos = math::CosOp::create(builder, getLoc(), angle);
  Value sin = math::SinOp::create(builder, getLoc(), angle);
  auto factor = static_cast<float>(getAttentionFactor().convertToDouble());
  if (factor == 1)
    return {cos, sin};
  const SmallVector<float> factors(getFrequencies().size(), factor);
  Value scale = std::ssize(factors) == getRowColumns()
                    ? a.constant(factor, row)
                    : turnedRow(builder, *this, factors, 1);
  return {a.mul(cos, scale), a.mul(sin, scale)};
}

//===----------------------------------------------------------------------===//
// rope: x * cos + rotate_half(x) * sin
//===----------------------------------------------------------------------===//

int64_t RopeOp::getRowColumns() { return columnsOf(getCos()); }

SmallVector<MapAttr> RopeOp::getRowMaps() {
  int64_t heads = columnsOf(getX()) / getRowColumns();
  return {mapOf(*this, MapKind::Full), mapOf(*this, MapKind::Group, heads),
          mapOf(*this, MapKind::Group, heads)};
}

SmallVector<Value> RopeOp::buildRow(OpBuilder &builder, ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value x = arguments[0];
  Value rotated =
      RowRotateOp::create(builder, getLoc(), x.getType(), x, getRotated());
  return {a.add(a.mul(x, arguments[1]), a.mul(rotated, arguments[2]))};
}

//===----------------------------------------------------------------------===//
// activation, glu, add, scale, add_bias, magnitude, gate_rows, noise, dropout
//===----------------------------------------------------------------------===//

static Value activate(Arithmetic &a, Activation kind, Value x,
                      double slope = 1) {
  Type row = x.getType();
  switch (kind) {
  case Activation::Gelu: {
    Value erf = a.erf(a.times(x, std::sqrt(0.5)));
    return a.mul(a.times(x, 0.5), a.add(erf, a.constant(1, row)));
  }
  case Activation::GeluTanh: {
    // (1 + tanh u) / 2 is sigmoid(2 u).
    Value cubic = a.times(a.mul(a.mul(x, x), x), 0.044715);
    Value twice = a.times(a.add(x, cubic), std::sqrt(8 / llvm::numbers::pi));
    return a.mul(x, a.sigmoid(twice));
  }
  case Activation::Relu: {
    // At x = 0, a select has derivative 0, as in torch; a maximum has 1/2.
    Value zero = a.constant(0, row);
    return a.select(a.compare(arith::CmpFPredicate::OLE, x, zero), zero, x);
  }
  case Activation::Silu:
    return a.mul(x, a.sigmoid(slope == 1 ? x : a.times(x, slope)));
  case Activation::Relu2: {
    Value positive = activate(a, Activation::Relu, x);
    return a.mul(positive, positive);
  }
  }
  llvm_unreachable("every kind has its arithmetic");
}

SmallVector<Value> ActivationOp::buildRow(OpBuilder &builder,
                                          ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  return {activate(a, getKind(), arguments[0])};
}

/// Clamps x on one side with a select, so that the derivative at the limit is
/// torch's 1 and NaN stays NaN.
static Value clamp(Arithmetic &a, arith::CmpFPredicate isBeyond, Value x,
                   double limit) {
  Value end = a.constant(limit, x.getType());
  return a.select(a.compare(isBeyond, x, end), end, x);
}

SmallVector<Value> GluOp::buildRow(OpBuilder &builder, ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value gate = arguments[0], up = arguments[1];
  if (double limit = getLimit().convertToDouble()) {
    gate = clamp(a, arith::CmpFPredicate::OGT, gate, limit);
    up = clamp(a, arith::CmpFPredicate::OGT, up, limit);
    up = clamp(a, arith::CmpFPredicate::OLT, up, -limit);
  }
  if (double offset = getOffset().convertToDouble())
    up = a.add(up, a.constant(offset, up.getType()));
  return {
      a.mul(activate(a, getKind(), gate, getSlope().convertToDouble()), up)};
}

SmallVector<Value> ScaleOp::buildRow(OpBuilder &builder, ValueRange arguments) {
  APFloat factor = getFactor();
  bool isInexact = false;
  if (getRounded())
    factor.convert(
        cast<FloatType>(tensorOf(getX()).getElementType()).getFloatSemantics(),
        APFloat::rmNearestTiesToEven, &isInexact);
  return {Arithmetic(builder, getLoc())
              .times(arguments[0], factor.convertToDouble())};
}

SmallVector<Value> AddOp::buildRow(OpBuilder &builder, ValueRange arguments) {
  return {Arithmetic(builder, getLoc()).add(arguments[0], arguments[1])};
}

SmallVector<MapAttr> AddBiasOp::getRowMaps() {
  return {mapOf(*this, MapKind::Full), mapOf(*this, MapKind::Column)};
}

SmallVector<Value> AddBiasOp::buildRow(OpBuilder &builder,
                                       ValueRange arguments) {
  return {Arithmetic(builder, getLoc()).add(arguments[0], arguments[1])};
}

SmallVector<MapAttr> MagnitudeOp::getRowMaps() {
  return {mapOf(*this, MapKind::Full), mapOf(*this, MapKind::Column),
          mapOf(*this, MapKind::Column)};
}

SmallVector<Value> MagnitudeOp::buildRow(OpBuilder &builder,
                                         ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  return {a.mul(arguments[0], a.div(arguments[1], arguments[2]))};
}

SmallVector<MapAttr> GateRowsOp::getRowMaps() {
  return {mapOf(*this, MapKind::Full), mapOf(*this, MapKind::Scalar)};
}

SmallVector<Value> GateRowsOp::buildRow(OpBuilder &builder,
                                        ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value x = arguments[0];
  return {a.mul(x, a.sigmoid(a.splat(arguments[1], x.getType())))};
}

SmallVector<Value> NoiseOp::buildRow(OpBuilder &builder, ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Type row = arguments[0].getType();
  const double magnitude = getMagnitude().convertToDouble();
  Value random = RowRandomOp::create(builder, getLoc(), row, getId());
  Value length = RowStepOp::create(builder, getLoc(), builder.getF32Type(),
                                   "length_rsqrt");
  Value centred = a.sub(a.mul(random, a.constant(2 * magnitude, row)),
                        a.constant(magnitude, row));
  return {a.add(arguments[0], a.mul(centred, a.splat(length, row)))};
}

SmallVector<OpOperand *> DropoutOp::getColumnOperands() {
  return {&getXMutable()};
}
int64_t DropoutOp::getColumnRuns() { return columnsOf(getX()); }
std::string DropoutOp::describeRuns() {
  return std::to_string(getColumnRuns()) + " columns";
}
void DropoutOp::shardColumns(int64_t) { setShared(true); }

SmallVector<Value> DropoutOp::buildRow(OpBuilder &builder,
                                       ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Type row = arguments[0].getType();
  double p = getProbability().convertToDouble();
  Value random =
      RowRandomOp::create(builder, getLoc(), row, getId(), getShared());
  Value keep = arith::CmpFOp::create(
      builder, getLoc(), arith::CmpFPredicate::OGE, random, a.constant(p, row));
  Value scale = arith::SelectOp::create(builder, getLoc(), keep,
                                        a.constant(1.0 / (1.0 - p), row),
                                        a.constant(0.0, row));
  return {a.mul(arguments[0], scale)};
}
