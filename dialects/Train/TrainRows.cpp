// SPDX-License-Identifier: MIT

// The arithmetic of AdamW, and of activations in 8 bits, as rows.

#include "dialects/Train/Train.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

int64_t AdamWOp::getRowColumns() { return kFlatColumns; }

SmallVector<MapAttr> AdamWOp::getRowMaps() {
  SmallVector<MapAttr> maps(4, MapAttr::get(getContext(), MapKind::Full, 1));
  maps.push_back(MapAttr::get(getContext(), MapKind::Global, 1));
  return maps;
}

/// In torch's order of operations:
///   p -= lr * weight_decay * p
///   m = m + (1 - beta1) * (g - m),  v = beta2 * v + (1 - beta2) * g^2
///   p -= lr / correction1 * m / (sqrt(v) / correction2_sqrt + epsilon)
SmallVector<Value> AdamWOp::buildRow(OpBuilder &b, ValueRange arguments) {
  Location loc = getLoc();
  Value p = arguments[0], m = arguments[1], v = arguments[2];
  Type row = p.getType();
  auto step = [&](StringRef field) -> Value {
    return RowStepOp::create(b, loc, b.getF32Type(), field);
  };
  auto splat = [&](Value number) -> Value {
    return RowSplatOp::create(b, loc, row, number);
  };
  auto mul = [&](Value x, Value y) -> Value {
    return arith::MulFOp::create(b, loc, x, y);
  };
  auto add = [&](Value x, Value y) -> Value {
    return arith::AddFOp::create(b, loc, x, y);
  };
  auto sub = [&](Value x, Value y) -> Value {
    return arith::SubFOp::create(b, loc, x, y);
  };
  auto div = [&](Value x, Value y) -> Value {
    return arith::DivFOp::create(b, loc, x, y);
  };
  Value one = arith::ConstantOp::create(b, loc, b.getF32FloatAttr(1.0));
  Value rate = step("learning_rate"), beta1 = step("beta1"),
        beta2 = step("beta2");
  Value g = mul(arguments[3], splat(arguments[4]));
  Value decay = sub(one, mul(rate, step("weight_decay")));
  Value newM = add(m, mul(splat(sub(one, beta1)), sub(g, m)));
  Value newV =
      add(mul(splat(beta2), v), mul(splat(sub(one, beta2)), mul(g, g)));
  Value root = math::SqrtOp::create(b, loc, newV);
  Value denominator = add(div(root, splat(step("bias_correction2_sqrt"))),
                          splat(step("epsilon")));
  Value size = splat(div(rate, step("bias_correction1")));
  Value newP =
      sub(mul(p, splat(decay)), mul(size, div(newM, denominator)));
  SmallVector<Value> results = {newP, newM, newV};
  // A store rounds to the type of the result.
  if (getRounded())
    results.push_back(newP);
  return results;
}

//===----------------------------------------------------------------------===//
// encode_rows, decode_rows
//===----------------------------------------------------------------------===//

static MapAttr map(Operation *op, MapKind kind) {
  return MapAttr::get(op->getContext(), kind, 1);
}

int64_t EncodeRowsOp::getRowColumns() {
  return matrixColumns(cast<RankedTensorType>(getX().getType()));
}
SmallVector<MapAttr> EncodeRowsOp::getRowMaps() {
  return {map(*this, MapKind::Full)};
}
bool EncodeRowsOp::isScalarResult(unsigned index) { return index == 1; }

/// Rounds here and not at the store, so that rows which are decoded again in
/// the same kernel are those that memory would have given.
SmallVector<Value> EncodeRowsOp::buildRow(OpBuilder &b, ValueRange arguments) {
  constexpr float kLargestCode = 127, kSmallestRow = 1e-30f;
  Location loc = getLoc();
  Value x = arguments[0];
  auto number = [&](float value) -> Value {
    return arith::ConstantOp::create(b, loc, b.getF32FloatAttr(value));
  };
  Value size = math::AbsFOp::create(b, loc, x);
  Value largest = RowMaxOp::create(b, loc, b.getF32Type(), size);
  Value limit =
      arith::MaximumFOp::create(b, loc, largest, number(kSmallestRow));
  Value factor = arith::DivFOp::create(b, loc, number(kLargestCode), limit);
  Value scale = arith::DivFOp::create(b, loc, limit, number(kLargestCode));
  Value scaled = arith::MulFOp::create(
      b, loc, x, RowSplatOp::create(b, loc, x.getType(), factor));
  return {math::RoundEvenOp::create(b, loc, scaled), scale};
}

int64_t DecodeRowsOp::getRowColumns() {
  return matrixColumns(cast<RankedTensorType>(getX().getType()));
}
SmallVector<MapAttr> DecodeRowsOp::getRowMaps() {
  return {map(*this, MapKind::Full), map(*this, MapKind::Scalar)};
}

SmallVector<Value> DecodeRowsOp::buildRow(OpBuilder &b, ValueRange arguments) {
  Value codes = arguments[0];
  Value scales =
      RowSplatOp::create(b, getLoc(), codes.getType(), arguments[1]);
  return {arith::MulFOp::create(b, getLoc(), codes, scales)};
}
