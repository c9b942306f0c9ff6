// SPDX-License-Identifier: MIT

// Arithmetic shared by all updates, on rows shaped like a row of p.

#ifndef QLORA_DIALECTS_TRAIN_UPDATEARITHMETIC_H
#define QLORA_DIALECTS_TRAIN_UPDATEARITHMETIC_H

#include "dialects/Model/Arithmetic.h"
#include "dialects/Train/Train.h"

namespace qlora::train {

class UpdateArithmetic : public model::Arithmetic {
public:
  /// `scale` multiplies the gradient; ifFinite checks it for NaN.
  UpdateArithmetic(mlir::OpBuilder &b, mlir::Location loc, Type row,
                   Value scale, double rateScale, bool isUndecayed)
      : Arithmetic(b, loc), row(row), scale(scale), rateScale(rateScale),
        isUndecayed(isUndecayed) {}

  Value step(llvm::StringRef field) const {
    return model::RowStepOp::create(b, loc, b.getF32Type(), field);
  }
  Value wide(Value number) const { return splat(number, row); }
  Value wide(double value) const { return constant(value, row); }
  Value one() const { return number(1.0); }
  Value scaled(Value gradient) const { return mul(gradient, wide(scale)); }
  Value rate() const {
    Value rate = step("learning_rate");
    return rateScale == 1 ? rate : mul(rate, number(rateScale));
  }
  /// Returns p * (1 - rate * weight_decay), or p if it is not decayed.
  Value decayed(Value p) const {
    if (isUndecayed)
      return p;
    return mul(p, wide(sub(one(), mul(rate(), step("weight_decay")))));
  }
  /// Returns rest * x + weight * y, on rows or numbers; rest is 1 - weight.
  Value blend(Value x, Value rest, Value weight, Value y) const {
    auto like = [&](Value number) {
      return x.getType().isF32() ? number : splat(number, x.getType());
    };
    return add(mul(like(rest), x), mul(like(weight), y));
  }
  /// Returns beta * x + (1 - beta) * y, with beta1 or beta2 of the step block.
  Value byBeta1(Value x, Value y) const {
    return blend(x, step("beta1"), step("one_minus_beta1"), y);
  }
  Value byBeta2(Value x, Value y) const {
    return blend(x, step("beta2"), step("one_minus_beta2"), y);
  }
  /// Returns (1 - average) * x + average * y, with the step block's average.
  Value byAverage(Value x, Value y) const {
    Value average = step("average");
    return blend(x, sub(one(), average), average, y);
  }
  /// Returns `after`, or `before` if the scale is NaN.
  Value ifFinite(Value after, Value before) const {
    Value known = after.getType().isF32() ? scale : wide(scale);
    Value isFinite = compare(mlir::arith::CmpFPredicate::OEQ, known, known);
    return select(isFinite, after, before);
  }

private:
  const Type row;
  const Value scale;
  const double rateScale;

public:
  const bool isUndecayed;
};

} // namespace qlora::train

#endif // QLORA_DIALECTS_TRAIN_UPDATEARITHMETIC_H
