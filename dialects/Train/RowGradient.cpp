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
  Value sub(Value x, Value y) {
    return arith::SubFOp::create(b, x.getLoc(), x, y);
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
  Value extremumGradient(Value side, Value other, Value y, Value dy);
  Value functionGradient(Operation *op, Value x, Value y, Value dy);

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

/// Of the larger or smaller of two: all to who it is, half to each of equals,
/// as torch has it.
Value RowTape::extremumGradient(Value side, Value other, Value y, Value dy) {
  using P = arith::CmpFPredicate;
  Value half = times(dy, 0.5), zero = constant(0.0, dy);
  Value share = select(compare(P::OEQ, side, other), half, dy);
  return select(compare(P::OEQ, side, y), share, zero);
}

/// What flows to the operand of y = f(x); null where there is no rule.
Value RowTape::functionGradient(Operation *op, Value x, Value y, Value dy) {
  Location loc = op->getLoc();
  return TypeSwitch<Operation *, Value>(op)
      .Case<arith::NegFOp>([&](auto) { return neg(dy); })
      .Case<math::AbsFOp>([&](auto) { return sizeGradient(x, dy); })
      .Case<math::ExpOp>([&](auto) { return mul(dy, y); })
      .Case<math::LogOp>([&](auto) { return div(dy, x); })
      .Case<math::SqrtOp>([&](auto) { return times(div(dy, y), 0.5); })
      // d x^-1/2 = -1/2 y^3
      .Case<math::RsqrtOp>(
          [&](auto) { return times(mul(dy, mul(y, mul(y, y))), -0.5); })
      // y (1 - y)
      .Case<RowSigmoidOp>([&](auto) {
        Value g = mul(dy, y);
        return sub(g, mul(g, y));
      })
      // 1 - y^2
      .Case<math::TanhOp>([&](auto) { return sub(dy, mul(dy, mul(y, y))); })
      // 2 / sqrt(pi) e^(-x^2)
      .Case<math::ErfOp>([&](auto) {
        Value bell = math::ExpOp::create(b, loc, neg(mul(x, x)));
        return times(mul(dy, bell), 2 / std::sqrt(llvm::numbers::pi));
      })
      .Case<math::SinOp>(
          [&](auto) { return mul(dy, math::CosOp::create(b, loc, x)); })
      .Case<math::CosOp>(
          [&](auto) { return neg(mul(dy, math::SinOp::create(b, loc, x))); })
      // Where a value is rounded, its gradient is that of the exact one.
      .Case<RowRoundOp>([&](auto) { return dy; })
      .Case<RowSumOp>(
          [&](auto) { return RowSplatOp::create(b, loc, x.getType(), dy); })
      .Case<RowMaxOp>([&](auto) { return maxGradient(x, y, dy); })
      .Case<RowSplatOp>(
          [&](auto) { return RowSumOp::create(b, loc, b.getF32Type(), dy); })
      // The transpose is minus the rotation.
      .Case<RowRotateOp>([&](auto) {
        return neg(RowRotateOp::create(b, loc, dy.getType(), dy));
      })
      .Default([](Operation *) { return Value(); });
}

bool RowTape::reverse(Operation *op) {
  Value y = op->getNumResults() ? Value(op->getResult(0)) : Value();
  Value dy = y ? lookup(y) : y;
  // The last has steps, between which its slope is 0.
  if (!dy || isa<RowRandomOp, RowStepOp, RowConstantOp, arith::ConstantOp,
                 math::RoundEvenOp>(op))
    return true;
  auto x = [&](unsigned i) { return op->getOperand(i); };
  // Arguments are written in any order: no more than one is made in a call.
  auto flow = [&](Value first, Value second) {
    add(x(0), first);
    add(x(1), second);
    return true;
  };
  if (Value dx = functionGradient(op, x(0), y, dy))
    return add(x(0), dx), true;
  return TypeSwitch<Operation *, bool>(op)
      .Case<arith::AddFOp>([&](auto) { return flow(dy, dy); })
      .Case<arith::SubFOp>([&](auto) { return flow(dy, neg(dy)); })
      .Case<arith::MulFOp>([&](auto) {
        Value first = mul(dy, x(1));
        return flow(first, mul(dy, x(0)));
      })
      .Case<arith::DivFOp>([&](auto) {
        Value q = div(dy, x(1));
        return flow(q, neg(mul(q, y)));
      })
      .Case<arith::MaximumFOp, arith::MinimumFOp>([&](auto) {
        Value first = extremumGradient(x(0), x(1), y, dy);
        return flow(first, extremumGradient(x(1), x(0), y, dy));
      })
      .Case<arith::SelectOp>([&](auto) {
        // Not dy * 0, which is no number where dy is infinite.
        Value zero = constant(0.0, dy);
        add(x(1), select(x(0), dy, zero));
        add(x(2), select(x(0), zero, dy));
        return true;
      })
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
