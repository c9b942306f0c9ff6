// SPDX-License-Identifier: MIT

// Reverse mode through a row region: one rule per arithmetic op. A gradient
// kernel recomputes the forward row from its inputs, so nothing is saved.

#include "dialects/Model/Arithmetic.h"
#include "dialects/Train/Train.h"

#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace qlora::model;

namespace {

/// The cotangents of one row region.
class RowTape : Arithmetic {
public:
  using Arithmetic::Arithmetic;

  void flow(Value value, Value gradient) {
    Value &slot = gradients[value];
    slot = slot ? add(slot, gradient) : gradient;
  }
  Value lookup(Value value) const { return gradients.lookup(value); }

  /// Adds the contributions of one op. Returns false if there is no rule.
  bool reverse(Operation *op);

private:
  Value sizeGradient(Value x, Value dy);
  Value maxGradient(Value row, Value largest, Value dy);
  Value extremumGradient(Value side, Value other, Value y, Value dy);
  Value functionGradient(Operation *op, Value x, Value y, Value dy);

  llvm::DenseMap<Value, Value> gradients;
};

} // namespace

/// Gradient of |x|: dy times the sign of x, where the sign of 0 is 0.
Value RowTape::sizeGradient(Value x, Value dy) {
  Value zero = constant(0.0, x.getType()), minus = neg(dy);
  Value below = select(compare(arith::CmpFPredicate::OLT, x, zero), minus,
                       zero);
  return select(compare(arith::CmpFPredicate::OGT, x, zero), dy, below);
}

/// Gradient of the row maximum: split equally among all elements equal to it.
Value RowTape::maxGradient(Value row, Value largest, Value dy) {
  Value zero = constant(0.0, row.getType()), one = constant(1.0, row.getType());
  Value all = splat(largest, row.getType());
  Value is = compare(arith::CmpFPredicate::OEQ, row, all);
  Value count = sum(select(is, one, zero));
  Value share = splat(div(dy, count), row.getType());
  return select(is, share, zero);
}

/// Gradient of operand `side` of a maximum or minimum: dy if `side` is the
/// result, half of dy if the operands are equal, as in torch.
Value RowTape::extremumGradient(Value side, Value other, Value y, Value dy) {
  using P = arith::CmpFPredicate;
  Value half = times(dy, 0.5), zero = constant(0.0, dy.getType());
  Value share = select(compare(P::OEQ, side, other), half, dy);
  return select(compare(P::OEQ, side, y), share, zero);
}

/// Returns the gradient of x for y = f(x); null if there is no rule.
Value RowTape::functionGradient(Operation *op, Value x, Value y, Value dy) {
  return TypeSwitch<Operation *, Value>(op)
      .Case<arith::NegFOp>([&](auto) { return neg(dy); })
      .Case<math::AbsFOp>([&](auto) { return sizeGradient(x, dy); })
      .Case<math::ExpOp>([&](auto) { return mul(dy, y); })
      .Case<math::LogOp>([&](auto) { return div(dy, x); })
      .Case<math::SqrtOp>([&](auto) { return times(div(dy, y), 0.5); })
      // d/dx x^-1/2 = -1/2 y^3
      .Case<math::RsqrtOp>(
          [&](auto) { return times(mul(dy, mul(y, mul(y, y))), -0.5); })
      // d/dx sigmoid(x) = y (1 - y)
      .Case<RowSigmoidOp>([&](auto) {
        Value g = mul(dy, y);
        return sub(g, mul(g, y));
      })
      // d/dx tanh(x) = 1 - y^2
      .Case<math::TanhOp>([&](auto) { return sub(dy, mul(dy, mul(y, y))); })
      // d/dx erf(x) = 2 / sqrt(pi) e^(-x^2)
      .Case<math::ErfOp>([&](auto) {
        Value bell = math::ExpOp::create(b, loc, neg(mul(x, x)));
        return times(mul(dy, bell), 2 / std::sqrt(llvm::numbers::pi));
      })
      .Case<math::SinOp>(
          [&](auto) { return mul(dy, math::CosOp::create(b, loc, x)); })
      .Case<math::CosOp>(
          [&](auto) { return neg(mul(dy, math::SinOp::create(b, loc, x))); })
      // Rounding passes the gradient through unchanged.
      .Case<RowRoundOp>([&](auto) { return dy; })
      .Case<RowSumOp>([&](auto) { return splat(dy, x.getType()); })
      .Case<RowMaxOp>([&](auto) { return maxGradient(x, y, dy); })
      .Case<RowSplatOp>([&](auto) { return sum(dy); })
      // The transpose of rotate_half is minus rotate_half.
      .Case<RowRotateOp>([&](RowRotateOp rotate) {
        return neg(
            RowRotateOp::create(b, loc, dy.getType(), dy, rotate.getWidth()));
      })
      .Default([](Operation *) { return Value(); });
}

bool RowTape::reverse(Operation *op) {
  Value y = op->getNumResults() ? Value(op->getResult(0)) : Value();
  Value dy = y ? lookup(y) : y;
  // RoundEvenOp is piecewise constant: its slope is 0.
  if (!dy || isa<RowRandomOp, RowStepOp, RowConstantOp, arith::ConstantOp,
                 math::RoundEvenOp>(op))
    return true;
  auto x = [&](unsigned i) { return op->getOperand(i); };
  if (Value dx = functionGradient(op, x(0), y, dy))
    return flow(x(0), dx), true;
  // C++ evaluates arguments in any order: at most one argument may create ops.
  auto both = [&](Value first, Value second) {
    flow(x(0), first);
    flow(x(1), second);
    return true;
  };
  return TypeSwitch<Operation *, bool>(op)
      .Case<arith::AddFOp>([&](auto) { return both(dy, dy); })
      .Case<arith::SubFOp>([&](auto) { return both(dy, neg(dy)); })
      .Case<arith::MulFOp>([&](auto) {
        flow(x(0), mul(dy, x(1)));
        return flow(x(1), mul(dy, x(0))), true;
      })
      .Case<arith::DivFOp>([&](auto) {
        Value q = div(dy, x(1));
        return both(q, neg(mul(q, y)));
      })
      .Case<arith::MaximumFOp, arith::MinimumFOp>([&](auto) {
        Value first = extremumGradient(x(0), x(1), y, dy);
        return both(first, extremumGradient(x(1), x(0), y, dy));
      })
      .Case<arith::SelectOp>([&](auto) {
        // Not dy * 0, which is NaN if dy is infinite.
        Value zero = constant(0.0, dy.getType());
        flow(x(1), select(x(0), dy, zero));
        flow(x(2), select(x(0), zero, dy));
        return true;
      })
      .Default([](Operation *) { return false; });
}

/// Returns the values that depend on an argument: only they need a cotangent.
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
  SmallVector<Value> results = cast<RowOp>(op).buildRow(builder, arguments);
  SmallVector<Operation *> forward;
  for (Operation &inner : *block)
    forward.push_back(&inner);
  llvm::DenseSet<Value> reached = dependents(forward, arguments);
  RowTape tape(builder, op->getLoc());
  for (auto [result, gradient] : llvm::zip_equal(results, resultGradients))
    if (gradient)
      tape.flow(result, gradient);
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
