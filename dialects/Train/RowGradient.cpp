// SPDX-License-Identifier: MIT

// Reverse mode through a row region: one rule per arithmetic op. A gradient
// kernel recomputes the forward row from its inputs, so nothing is saved.

#include "dialects/Train/Train.h"

#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace qlora::model;

namespace {

/// The cotangents of one row region.
class RowTape {
public:
  explicit RowTape(OpBuilder &builder) : b(builder) {}

  void add(Value value, Value gradient) {
    Value &slot = gradients[value];
    slot = slot ? Value(arith::AddFOp::create(b, value.getLoc(), slot,
                                              gradient))
                : gradient;
  }
  Value lookup(Value value) const { return gradients.lookup(value); }

  /// Adds the contributions of one op. False: no rule.
  bool reverse(Operation *op);

private:
  Value mul(Value x, Value y) {
    return arith::MulFOp::create(b, x.getLoc(), x, y);
  }
  Value div(Value x, Value y) {
    return arith::DivFOp::create(b, x.getLoc(), x, y);
  }
  Value neg(Value x) { return arith::NegFOp::create(b, x.getLoc(), x); }
  /// A number as a value of the type of `like`: a row of it or itself.
  Value constant(double number, Value like) {
    Location loc = like.getLoc();
    Value value = arith::ConstantOp::create(b, loc, b.getF32FloatAttr(number));
    if (isa<RankedTensorType>(like.getType()))
      value = RowSplatOp::create(b, loc, like.getType(), value);
    return value;
  }
  Value times(Value value, double factor) {
    return mul(value, constant(factor, value));
  }
  Value compare(arith::CmpFPredicate predicate, Value x, Value y) {
    return arith::CmpFOp::create(b, x.getLoc(), predicate, x, y);
  }
  Value select(Value condition, Value then, Value otherwise) {
    return arith::SelectOp::create(b, then.getLoc(), condition, then,
                                   otherwise);
  }
  Value sizeGradient(Value x, Value dy);
  Value maxGradient(Value row, Value largest, Value dy);
  void extremumGradient(Value a, Value b, Value which, Value dy);

  OpBuilder &b;
  llvm::DenseMap<Value, Value> gradients;
};

} // namespace

/// Of |x|: dy times the sign, which of 0 is 0.
Value RowTape::sizeGradient(Value x, Value dy) {
  Value zero = constant(0.0, x), minus = neg(dy);
  Value below = select(compare(arith::CmpFPredicate::OLT, x, zero), minus,
                       zero);
  return select(compare(arith::CmpFPredicate::OGT, x, zero), dy, below);
}

/// Of the largest element: shared by all that are it.
Value RowTape::maxGradient(Value row, Value largest, Value dy) {
  Location loc = row.getLoc();
  Value zero = constant(0.0, row), one = constant(1.0, row);
  Value all = RowSplatOp::create(b, loc, row.getType(), largest);
  Value is = compare(arith::CmpFPredicate::OEQ, row, all);
  Value count =
      RowSumOp::create(b, loc, b.getF32Type(), select(is, one, zero));
  Value share = RowSplatOp::create(b, loc, row.getType(), div(dy, count));
  return select(is, share, zero);
}

/// Of the larger or smaller of two: to who it is, halved between equals, as
/// torch has it.
void RowTape::extremumGradient(Value a, Value b, Value which, Value dy) {
  Value zero = constant(0.0, dy);
  Value share = select(compare(arith::CmpFPredicate::OEQ, a, b),
                       times(dy, 0.5), dy);
  for (Value side : {a, b})
    add(side, select(compare(arith::CmpFPredicate::OEQ, side, which), share,
                     zero));
}

bool RowTape::reverse(Operation *op) {
  Value y = op->getNumResults() ? Value(op->getResult(0)) : Value();
  Value dy = y ? lookup(y) : y;
  if (!dy)
    return true;
  Location loc = op->getLoc();
  auto x = [&](unsigned i) { return op->getOperand(i); };
  return TypeSwitch<Operation *, bool>(op)
      .Case<arith::AddFOp>([&](auto) {
        add(x(0), dy);
        add(x(1), dy);
        return true;
      })
      .Case<arith::SubFOp>([&](auto) {
        add(x(0), dy);
        add(x(1), neg(dy));
        return true;
      })
      .Case<arith::MulFOp>([&](auto) {
        add(x(0), mul(dy, x(1)));
        add(x(1), mul(dy, x(0)));
        return true;
      })
      .Case<arith::DivFOp>([&](auto) {
        Value q = div(dy, x(1));
        add(x(0), q);
        add(x(1), neg(mul(q, y)));
        return true;
      })
      .Case<arith::NegFOp>([&](auto) { return add(x(0), neg(dy)), true; })
      .Case<arith::SelectOp>([&](auto) {
        // Not dy * 0, which is no number where dy is infinite.
        Value zero = constant(0.0, dy);
        add(x(1), select(x(0), dy, zero));
        add(x(2), select(x(0), zero, dy));
        return true;
      })
      .Case<math::AbsFOp>(
          [&](auto) { return add(x(0), sizeGradient(x(0), dy)), true; })
      .Case<arith::MaximumFOp, arith::MinimumFOp>(
          [&](auto) { return extremumGradient(x(0), x(1), y, dy), true; })
      .Case<math::ExpOp>([&](auto) { return add(x(0), mul(dy, y)), true; })
      .Case<math::LogOp>([&](auto) { return add(x(0), div(dy, x(0))), true; })
      .Case<math::TanhOp>([&](auto) { // 1 - y^2
        add(x(0), arith::SubFOp::create(b, loc, dy, mul(dy, mul(y, y))));
        return true;
      })
      .Case<math::ErfOp>([&](auto) { // 2 / sqrt(pi) e^(-x^2)
        Value bell = math::ExpOp::create(b, loc, neg(mul(x(0), x(0))));
        add(x(0), times(mul(dy, bell), 2 / std::sqrt(llvm::numbers::pi)));
        return true;
      })
      .Case<math::SqrtOp>([&](auto) {
        add(x(0), times(div(dy, y), 0.5));
        return true;
      })
      .Case<math::RsqrtOp>([&](auto) { // d x^-1/2 = -1/2 y^3
        add(x(0), times(mul(dy, mul(y, mul(y, y))), -0.5));
        return true;
      })
      .Case<RowSigmoidOp>([&](auto) { // s (1 - s)
        Value g = mul(dy, y);
        add(x(0), arith::SubFOp::create(b, loc, g, mul(g, y)));
        return true;
      })
      .Case<math::SinOp>([&](auto) {
        add(x(0), mul(dy, math::CosOp::create(b, loc, x(0))));
        return true;
      })
      .Case<math::CosOp>([&](auto) {
        add(x(0), neg(mul(dy, math::SinOp::create(b, loc, x(0)))));
        return true;
      })
      .Case<RowSumOp>([&](auto) {
        add(x(0), RowSplatOp::create(b, loc, x(0).getType(), dy));
        return true;
      })
      .Case<RowMaxOp>(
          [&](auto) { return add(x(0), maxGradient(x(0), y, dy)), true; })
      .Case<RowSplatOp>([&](auto) {
        add(x(0), RowSumOp::create(b, loc, b.getF32Type(), dy));
        return true;
      })
      .Case<RowRotateOp>([&](auto) { // the transpose is minus the rotation
        add(x(0), neg(RowRotateOp::create(b, loc, dy.getType(), dy)));
        return true;
      })
      // Where a value is rounded, its gradient is that of the exact one.
      .Case<RowRoundOp>([&](auto) { return add(x(0), dy), true; })
      // The last has steps, between which its slope is 0.
      .Case<RowRandomOp, RowStepOp, RowConstantOp, arith::ConstantOp,
            math::RoundEvenOp>([](auto) { return true; })
      .Default([](Operation *) { return false; });
}

/// Only what depends on an argument is worth a cotangent.
static llvm::DenseSet<Value> dependents(ArrayRef<Operation *> ops,
                                        ValueRange arguments) {
  llvm::DenseSet<Value> reached(arguments.begin(), arguments.end());
  for (Operation *op : ops)
    if (llvm::any_of(op->getOperands(),
                     [&](Value v) { return reached.contains(v); }))
      reached.insert(op->result_begin(), op->result_end());
  return reached;
}

FailureOr<SmallVector<Value>>
qlora::train::buildRowGradient(Operation *op, OpBuilder &builder,
                               ValueRange arguments,
                               ArrayRef<Value> resultGradients) {
  Block *block = builder.getInsertionBlock();
  SmallVector<Value> results =
      cast<RowOp>(op).buildRow(builder, arguments);
  SmallVector<Operation *> forward;
  for (Operation &inner : *block)
    forward.push_back(&inner);
  llvm::DenseSet<Value> reached = dependents(forward, arguments);
  RowTape tape(builder);
  for (auto [result, gradient] : llvm::zip_equal(results, resultGradients))
    if (gradient)
      tape.add(result, gradient);
  for (Operation *inner : llvm::reverse(forward)) {
    if (!llvm::any_of(inner->getOperands(),
                      [&](Value v) { return reached.contains(v); }))
      continue;
    if (!tape.reverse(inner))
      return op->emitOpError("has no derivative: no rule for '")
             << inner->getName() << "' in its row";
  }
  return llvm::map_to_vector(arguments,
                             [&](Value v) { return tape.lookup(v); });
}
