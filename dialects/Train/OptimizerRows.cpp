// SPDX-License-Identifier: MIT

// Row arithmetic of optimizers and of 8-bit rows.

#include "dialects/Train/UpdateArithmetic.h"

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

/// Returns the maps of an update: `global` for the scale, the last operand, and
/// `full` for all others.
static SmallVector<MapAttr> updateMaps(Operation *op) {
  SmallVector<MapAttr> maps = fullMaps(op);
  maps.back() = mapOf(op, MapKind::Global);
  return maps;
}
SmallVector<MapAttr> AdamWOp::getRowMaps() { return updateMaps(*this); }
SmallVector<MapAttr> LionOp::getRowMaps() { return updateMaps(*this); }
SmallVector<MapAttr> RmsPropOp::getRowMaps() { return updateMaps(*this); }
SmallVector<MapAttr> ScheduleFreeOp::getRowMaps() { return updateMaps(*this); }

/// Returns the arithmetic of a row update, whose last argument is the scale.
template <typename Op>
static UpdateArithmetic arithmeticOf(OpBuilder &b, Op op, ValueRange rows) {
  return {b, op.getLoc(), rows.front().getType(), rows.back(),
          op.getRateScale().convertToDouble(), op.getUndecayed()};
}

/// Returns `updated`, or the old p and states if the scale is NaN.
static SmallVector<Value> finite(const UpdateArithmetic &a, ValueRange updated,
                                 ValueRange rows) {
  SmallVector<Value> results;
  for (auto [after, before] : llvm::zip_equal(updated, rows.drop_back(2)))
    results.push_back(a.ifFinite(after, before));
  return results;
}

/// Returns `step` + weight_decay * p, or `step` if p is not decayed.
static Value withDecay(const UpdateArithmetic &a, Value step, Value p) {
  if (a.isUndecayed)
    return step;
  return a.add(step, a.mul(a.wide(a.step("weight_decay")), p));
}

/// Follows torch's order of operations:
///   p -= lr * weight_decay * p
///   m = m + (1 - beta1) * (g - m),  v = beta2 * v + (1 - beta2) * g^2
///   p -= lr / correction1 * m / (sqrt(v) / correction2_sqrt + epsilon)
SmallVector<Value> AdamWOp::buildRow(OpBuilder &b, ValueRange rows) {
  const UpdateArithmetic a = arithmeticOf(b, *this, rows);
  Value p = rows[0], m = rows[1], v = rows[2], g = a.scaled(rows[3]);
  Value beta2 = a.step("beta2");
  Value newM = a.add(
      m, a.mul(a.wide(a.sub(a.one(), a.step("beta1"))), a.sub(g, m)));
  Value newV = a.add(a.mul(a.wide(beta2), v),
                     a.mul(a.wide(a.sub(a.one(), beta2)), a.mul(g, g)));
  Value denominator =
      a.add(a.div(a.sqrt(newV), a.wide(a.step("bias_correction2_sqrt"))),
            a.wide(a.step("epsilon")));
  Value size = a.wide(a.div(a.rate(), a.step("bias_correction1")));
  Value newP = a.sub(a.decayed(p), a.mul(size, a.div(newM, denominator)));
  return finite(a, {newP, newM, newV}, rows);
}

/// p = (1 - lr * weight_decay) * p - lr * sign(beta1 * m + (1 - beta1) * g)
/// m = beta2 * m + (1 - beta2) * g
SmallVector<Value> LionOp::buildRow(OpBuilder &b, ValueRange rows) {
  const UpdateArithmetic a = arithmeticOf(b, *this, rows);
  Value p = rows[0], m = rows[1], g = a.scaled(rows[2]);
  Value direction = a.byBeta1(m, g);
  Value zero = a.wide(0.0), rate = a.wide(a.rate());
  auto isIn = [&](arith::CmpFPredicate predicate) {
    return a.select(a.compare(predicate, direction, zero), rate, zero);
  };
  Value size = a.sub(isIn(arith::CmpFPredicate::OGT),
                     isIn(arith::CmpFPredicate::OLT));
  return finite(a, {a.sub(a.decayed(p), size), a.byBeta2(m, g)}, rows);
}

/// Follows torch.optim.RMSprop with its defaults for alpha and epsilon, which
/// transformers' Trainer uses:
///   g = g + weight_decay * p
///   v = alpha * v + (1 - alpha) * g^2
///   p = p - lr * g / (sqrt(v) + epsilon)
SmallVector<Value> RmsPropOp::buildRow(OpBuilder &b, ValueRange rows) {
  constexpr double kAlpha = 0.99, kEpsilon = 1e-8;
  const UpdateArithmetic a = arithmeticOf(b, *this, rows);
  Value p = rows[0], v = rows[1], g = withDecay(a, a.scaled(rows[2]), p);
  Value newV = a.blend(v, a.number(kAlpha), a.number(1 - kAlpha), a.mul(g, g));
  Value divisor = a.add(a.sqrt(newV), a.wide(kEpsilon));
  Value update = a.mul(a.wide(a.rate()), a.div(g, divisor));
  return finite(a, {a.sub(p, update), newV}, rows);
}

/// Follows the package schedulefree. p is y; z starts at p. `average` is the
/// weight of this step's z in the average x:
///   v = beta2 * v + (1 - beta2) * g^2
///   d = g / (sqrt(v / correction2) + epsilon) + weight_decay * y
///   y = y + average * (z - y) + lr * (beta1 * (1 - average) - 1) * d
///   z = z - lr * d
SmallVector<Value> ScheduleFreeOp::buildRow(OpBuilder &b, ValueRange rows) {
  const UpdateArithmetic a = arithmeticOf(b, *this, rows);
  Value y = rows[0], v = rows[2], g = a.scaled(rows[3]), rate = a.rate();
  Value isFirst = a.compare(arith::CmpFPredicate::OLE,
                            a.wide(a.step("update")), a.wide(a.one()));
  Value z = a.select(isFirst, y, rows[1]);
  Value newV = a.byBeta2(v, a.mul(g, g));
  Value root = a.div(a.sqrt(newV), a.wide(a.step("bias_correction2_sqrt")));
  Value d = withDecay(a, a.div(g, a.add(root, a.wide(a.step("epsilon")))), y);
  Value average = a.step("average");
  Value weight = a.mul(
      rate, a.sub(a.mul(a.step("beta1"), a.sub(a.one(), average)), a.one()));
  Value newY = a.add(a.add(y, a.mul(a.wide(average), a.sub(z, y))),
                     a.mul(a.wide(weight), d));
  return finite(a, {newY, a.sub(z, a.mul(a.wide(rate), d)), newV}, rows);
}

/// x = y + (1 - 1 / beta1) * (z - y), or back: y = x + (1 - beta1) * (z - x)
SmallVector<Value> ScheduleFreeSwitchOp::buildRow(OpBuilder &b,
                                                  ValueRange rows) {
  Arithmetic a(b, getLoc());
  auto step = [&](StringRef field) -> Value {
    return RowStepOp::create(b, getLoc(), b.getF32Type(), field);
  };
  Value weight = step("one_minus_beta1");
  if (!getBack())
    weight = a.sub(a.number(1), a.div(a.number(1), step("beta1")));
  Value p = rows[0], z = rows[1];
  return {a.add(p, a.mul(a.splat(weight, p.getType()), a.sub(z, p)))};
}

/// Returns the values unchanged: the store rounds them to the result's type.
SmallVector<Value> RoundOp::buildRow(OpBuilder &, ValueRange rows) {
  return {rows[0]};
}

//===----------------------------------------------------------------------===//
// encode_rows, decode_rows, left_by_codes
//===----------------------------------------------------------------------===//

bool EncodeRowsOp::isScalarResult(unsigned index) { return index == 1; }

/// Rounds in the arithmetic and not at the store, so that rows decoded in the
/// same kernel equal rows that were read from memory.
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

SmallVector<MapAttr> DecodeRowsOp::getRowMaps() {
  return {mapOf(*this, MapKind::Full), mapOf(*this, MapKind::Scalar)};
}

SmallVector<Value> DecodeRowsOp::buildRow(OpBuilder &b, ValueRange arguments) {
  Value codes = arguments[0];
  Arithmetic a(b, getLoc());
  return {a.mul(codes, a.splat(arguments[1], codes.getType()))};
}

SmallVector<MapAttr> LeftByCodesOp::getRowMaps() {
  return {mapOf(*this, MapKind::Full), mapOf(*this, MapKind::Full),
          mapOf(*this, MapKind::Scalar)};
}

/// Returns x minus the decoded codes; 0 if x is not finite (`none` is NaN).
SmallVector<Value> LeftByCodesOp::buildRow(OpBuilder &b, ValueRange arguments) {
  Arithmetic a(b, getLoc());
  Value x = arguments[0], scale = a.splat(arguments[2], x.getType());
  Value left = a.sub(x, a.mul(arguments[1], scale)), none = a.sub(scale, scale);
  Value isFinite = a.compare(arith::CmpFPredicate::OEQ, none, none);
  return {a.select(isFinite, left, a.constant(0, x.getType()))};
}
