// SPDX-License-Identifier: MIT

// The arithmetic of AdamW, and of activations in 8 bits, as rows.

#include "dialects/Model/Arithmetic.h"
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
/// and nothing of it where the scale is NaN.
SmallVector<Value> AdamWOp::buildRow(OpBuilder &b, ValueRange arguments) {
  Arithmetic a(b, getLoc());
  Value p = arguments[0], m = arguments[1], v = arguments[2];
  Type row = p.getType();
  auto step = [&](StringRef field) -> Value {
    return RowStepOp::create(b, getLoc(), b.getF32Type(), field);
  };
  auto splat = [&](Value number) { return a.splat(number, row); };
  Value one = a.number(1.0);
  Value rate = step("learning_rate"), beta1 = step("beta1"),
        beta2 = step("beta2");
  if (const double scale = getRateScale().convertToDouble(); scale != 1)
    rate = a.mul(rate, a.number(scale));
  Value g = a.mul(arguments[3], splat(arguments[4]));
  Value newM = a.add(m, a.mul(splat(a.sub(one, beta1)), a.sub(g, m)));
  Value newV = a.add(a.mul(splat(beta2), v),
                     a.mul(splat(a.sub(one, beta2)), a.mul(g, g)));
  Value denominator =
      a.add(a.div(a.sqrt(newV), splat(step("bias_correction2_sqrt"))),
            splat(step("epsilon")));
  Value size = splat(a.div(rate, step("bias_correction1")));
  Value decayed = p;
  if (!getUndecayed())
    decayed = a.mul(p, splat(a.sub(one, a.mul(rate, step("weight_decay")))));
  Value newP = a.sub(decayed, a.mul(size, a.div(newM, denominator)));
  Value scale = splat(arguments[4]);
  Value isFinite = a.compare(arith::CmpFPredicate::OEQ, scale, scale);
  newP = a.select(isFinite, newP, p);
  SmallVector<Value> results = {newP, a.select(isFinite, newM, m),
                                a.select(isFinite, newV, v)};
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
  Arithmetic a(b, getLoc());
  Value x = arguments[0];
  Value largest = RowMaxOp::create(b, getLoc(), b.getF32Type(),
                                   math::AbsFOp::create(b, getLoc(), x));
  Value limit = arith::MaximumFOp::create(b, getLoc(), largest,
                                          a.number(kSmallestRow));
  Value factor = a.div(a.number(kLargestCode), limit);
  Value scale = a.div(limit, a.number(kLargestCode));
  Value scaled = a.mul(x, a.splat(factor, x.getType()));
  return {math::RoundEvenOp::create(b, getLoc(), scaled), scale};
}

int64_t DecodeRowsOp::getRowColumns() {
  return matrixColumns(cast<RankedTensorType>(getX().getType()));
}
SmallVector<MapAttr> DecodeRowsOp::getRowMaps() {
  return {map(*this, MapKind::Full), map(*this, MapKind::Scalar)};
}

SmallVector<Value> DecodeRowsOp::buildRow(OpBuilder &b, ValueRange arguments) {
  Value codes = arguments[0];
  Arithmetic a(b, getLoc());
  return {a.mul(codes, a.splat(arguments[1], codes.getType()))};
}
