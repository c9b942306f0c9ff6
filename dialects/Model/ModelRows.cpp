// SPDX-License-Identifier: MIT

// The arithmetic of every row op of the model dialect: the only place it is
// written. Kernels are generated from it and gradients derived from it.

#include "dialects/Model/Arithmetic.h"

#include "llvm/Support/MathExtras.h"

#include <cmath>

using namespace mlir;
using namespace qlora::model;

static MapAttr map(Operation *op, MapKind kind, int64_t group = 1) {
  return MapAttr::get(op->getContext(), kind, group);
}

//===----------------------------------------------------------------------===//
// rms_norm: x * rsqrt(mean(x^2) + epsilon) * weight
//===----------------------------------------------------------------------===//

int64_t RmsNormOp::getRowColumns() { return columnsOf(getWeight()); }

SmallVector<MapAttr> RmsNormOp::getRowMaps() {
  return {map(*this, MapKind::Full), map(*this, MapKind::Column)};
}

SmallVector<Value> RmsNormOp::buildRow(OpBuilder &builder,
                                       ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value x = arguments[0], weight = arguments[1];
  Value mean = a.mean(a.mul(x, x));
  Value scale =
      a.rsqrt(a.add(mean, a.number(getEpsilon().convertToDouble())));
  return {a.mul(a.mul(x, a.splat(scale, x.getType())), weight)};
}

//===----------------------------------------------------------------------===//
// layer_norm: (x - mean) * rsqrt(mean((x - mean)^2) + epsilon) * weight + bias
//===----------------------------------------------------------------------===//

int64_t LayerNormOp::getRowColumns() { return columnsOf(getWeight()); }

SmallVector<MapAttr> LayerNormOp::getRowMaps() {
  return {map(*this, MapKind::Full), map(*this, MapKind::Column),
          map(*this, MapKind::Column)};
}

SmallVector<Value> LayerNormOp::buildRow(OpBuilder &builder,
                                         ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value x = arguments[0], weight = arguments[1], bias = arguments[2];
  Type row = x.getType();
  // Of the differences and not mean(x^2) - mean^2, which cancels.
  Value centered = a.sub(x, a.splat(a.mean(x), row));
  Value epsilon = a.number(getEpsilon().convertToDouble());
  Value scale = a.rsqrt(a.add(a.mean(a.mul(centered, centered)), epsilon));
  return {a.add(a.mul(a.mul(centered, a.splat(scale, row)), weight), bias)};
}

//===----------------------------------------------------------------------===//
// rope_table: cos and sin of position * frequency
//===----------------------------------------------------------------------===//

int64_t RopeTableOp::getRowColumns() { return getFrequencies().size(); }

SmallVector<MapAttr> RopeTableOp::getRowMaps() {
  return {map(*this, MapKind::Scalar)};
}

SmallVector<Value> RopeTableOp::buildRow(OpBuilder &builder,
                                         ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  auto row =
      RankedTensorType::get({getRowColumns()}, builder.getF32Type());
  Value frequencies =
      RowConstantOp::create(builder, getLoc(), row, getFrequenciesAttr());
  Value angle = a.mul(a.splat(arguments[0], row), frequencies);
  Value cos = math::CosOp::create(builder, getLoc(), angle);
  Value sin = math::SinOp::create(builder, getLoc(), angle);
  double factor = getAttentionFactor().convertToDouble();
  if (factor == 1)
    return {cos, sin};
  Value factors = a.constant(factor, row);
  return {a.mul(cos, factors), a.mul(sin, factors)};
}

//===----------------------------------------------------------------------===//
// rope: x * cos + rotate_half(x) * sin
//===----------------------------------------------------------------------===//

int64_t RopeOp::getRowColumns() { return columnsOf(getCos()); }

SmallVector<MapAttr> RopeOp::getRowMaps() {
  int64_t heads = columnsOf(getX()) / getRowColumns();
  return {map(*this, MapKind::Full), map(*this, MapKind::Group, heads),
          map(*this, MapKind::Group, heads)};
}

SmallVector<Value> RopeOp::buildRow(OpBuilder &builder, ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value x = arguments[0];
  Value rotated = RowRotateOp::create(builder, getLoc(), x.getType(), x);
  return {a.add(a.mul(x, arguments[1]), a.mul(rotated, arguments[2]))};
}

//===----------------------------------------------------------------------===//
// swiglu, activation, add, add_bias, gate_rows, dropout
//===----------------------------------------------------------------------===//

int64_t SwigluOp::getRowColumns() { return columnsOf(getGate()); }

SmallVector<MapAttr> SwigluOp::getRowMaps() {
  return {map(*this, MapKind::Full), map(*this, MapKind::Full)};
}

SmallVector<Value> SwigluOp::buildRow(OpBuilder &builder,
                                      ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value gate = arguments[0];
  return {a.mul(a.mul(gate, a.sigmoid(gate)), arguments[1])};
}

int64_t ActivationOp::getRowColumns() { return columnsOf(getX()); }

SmallVector<MapAttr> ActivationOp::getRowMaps() {
  return {map(*this, MapKind::Full)};
}

SmallVector<Value> ActivationOp::buildRow(OpBuilder &builder,
                                          ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value x = arguments[0];
  Type row = x.getType();
  switch (getKind()) {
  case Activation::Gelu: {
    Value erf =
        math::ErfOp::create(builder, getLoc(), a.times(x, std::sqrt(0.5)));
    return {a.mul(a.times(x, 0.5), a.add(erf, a.constant(1, row)))};
  }
  case Activation::GeluTanh: {
    // (1 + tanh u) / 2 is sigmoid(2 u).
    Value cubic = a.times(a.mul(a.mul(x, x), x), 0.044715);
    Value twice = a.times(a.add(x, cubic), std::sqrt(8 / llvm::numbers::pi));
    return {a.mul(x, a.sigmoid(twice))};
  }
  case Activation::Relu: {
    // Not a maximum, whose derivative at 0 is not torch's 0.
    Value zero = a.constant(0, row);
    return {a.select(a.compare(arith::CmpFPredicate::OLE, x, zero), zero, x)};
  }
  case Activation::Silu:
    return {a.mul(x, a.sigmoid(x))};
  }
  llvm_unreachable("every kind has its arithmetic");
}

int64_t AddOp::getRowColumns() { return columnsOf(getA()); }

SmallVector<MapAttr> AddOp::getRowMaps() {
  return {map(*this, MapKind::Full), map(*this, MapKind::Full)};
}

SmallVector<Value> AddOp::buildRow(OpBuilder &builder, ValueRange arguments) {
  return {Arithmetic(builder, getLoc()).add(arguments[0], arguments[1])};
}

int64_t AddBiasOp::getRowColumns() { return columnsOf(getBias()); }

SmallVector<MapAttr> AddBiasOp::getRowMaps() {
  return {map(*this, MapKind::Full), map(*this, MapKind::Column)};
}

SmallVector<Value> AddBiasOp::buildRow(OpBuilder &builder,
                                       ValueRange arguments) {
  return {Arithmetic(builder, getLoc()).add(arguments[0], arguments[1])};
}

int64_t GateRowsOp::getRowColumns() { return columnsOf(getX()); }

SmallVector<MapAttr> GateRowsOp::getRowMaps() {
  return {map(*this, MapKind::Full), map(*this, MapKind::Scalar)};
}

SmallVector<Value> GateRowsOp::buildRow(OpBuilder &builder,
                                        ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Value x = arguments[0];
  return {a.mul(x, a.sigmoid(a.splat(arguments[1], x.getType())))};
}

int64_t DropoutOp::getRowColumns() { return columnsOf(getX()); }

SmallVector<MapAttr> DropoutOp::getRowMaps() {
  return {map(*this, MapKind::Full)};
}

SmallVector<Value> DropoutOp::buildRow(OpBuilder &builder,
                                       ValueRange arguments) {
  Arithmetic a(builder, getLoc());
  Type row = arguments[0].getType();
  double p = getProbability().convertToDouble();
  Value random = RowRandomOp::create(builder, getLoc(), row, getIdAttr());
  Value keep =
      arith::CmpFOp::create(builder, getLoc(), arith::CmpFPredicate::OGE,
                            random, a.constant(p, row));
  Value scale = arith::SelectOp::create(builder, getLoc(), keep,
                                        a.constant(1.0 / (1.0 - p), row),
                                        a.constant(0.0, row));
  return {a.mul(arguments[0], scale)};
}
