// SPDX-License-Identifier: MIT

// Arithmetic of preference losses, on rows with one value per sequence of the
// batch. In pair losses the first half of a row has the chosen answers;
// row_rotate moves the negated second half to it.

#ifndef QLORA_DIALECTS_MODEL_PAIRARITHMETIC_H
#define QLORA_DIALECTS_MODEL_PAIRARITHMETIC_H

#include "dialects/Model/Arithmetic.h"

namespace qlora::model {

class LineArithmetic : public Arithmetic {
public:
  using Pred = mlir::arith::CmpFPredicate;

  LineArithmetic(mlir::OpBuilder &builder, mlir::Location loc, Type row)
      : Arithmetic(builder, loc), row(row) {}

  Value isAboveZero(Value x) const {
    return compare(Pred::OGT, x, constant(0, x.getType()));
  }
  /// Returns `x` in sequences [begin, end), 0 in others.
  Value within(int64_t begin, int64_t end, Value x) const {
    llvm::SmallVector<float> mask(
        mlir::cast<mlir::RankedTensorType>(row).getDimSize(0), 0);
    std::fill(mask.begin() + begin, mask.begin() + end, 1.0f);
    return mul(RowConstantOp::create(b, loc, row, mask), x);
  }
  /// Returns the sum of `x` where `counts` is true. Other elements may be NaN.
  Value totalWhere(Value counts, Value x) const {
    return sum(select(counts, x, constant(0, row)));
  }

  const Type row;
};

/// Arithmetic on a batch of pairs. Values per pair are in a row's first half.
class PairArithmetic : public LineArithmetic {
public:
  PairArithmetic(mlir::OpBuilder &builder, mlir::Location loc, Value labels)
      : LineArithmetic(builder, loc, labels.getType()) {
    const int64_t lines = mlir::cast<mlir::RankedTensorType>(row).getDimSize(0);
    isPair = isAboveZero(within(0, lines / 2, sub(labels, turned(labels))));
  }

  Value turned(Value x) const { return RowRotateOp::create(b, loc, row, x, 0); }
  /// Returns, at each chosen answer, the value of its pair's rejected answer.
  Value ofRejected(Value x) const { return neg(turned(x)); }
  /// Returns `x` where there is a pair, else 0 even if `x` is NaN there.
  Value ofPairs(Value x) const { return select(isPair, x, constant(0, row)); }
  Value total(Value x) const { return totalWhere(isPair, x); }
  /// Returns `chosen` at the chosen answers and `rejected` at the rejected
  /// ones. Both operands have their values in the first half.
  Value toLines(Value chosen, Value rejected) const {
    return add(ofPairs(chosen), turned(ofPairs(rejected)));
  }
  Value exp(Value x) const { return mlir::math::ExpOp::create(b, loc, x); }
  Value log(Value x) const { return mlir::math::LogOp::create(b, loc, x); }
  /// Returns -log sigmoid(x), without overflow in any term.
  Value softplusOfMinus(Value x) const {
    Value zero = constant(0, row);
    Value positive = select(compare(Pred::OLT, x, zero), neg(x), zero);
    Value small = exp(neg(mlir::math::AbsFOp::create(b, loc, x)));
    return add(positive, log(add(small, constant(1, row))));
  }
  /// Returns `x` where z < 1 or z is NaN, else 0.
  Value belowOne(Value z, Value x) const {
    Value isReached = compare(Pred::OGE, z, constant(1, row));
    return select(isReached, constant(0, row), x);
  }
  /// Returns 1 / labels. A sequence without labels has loss 0; dividing by 1,
  /// not 0, avoids NaN.
  Value inverseOf(Value labels, Value one) const {
    return div(one, select(isAboveZero(labels), labels, one));
  }
  /// Returns the number of pairs divided by `tokens`, or by 1 if that is 0.
  /// Times a sum over tokens, it is the mean over the tokens, once for each
  /// pair.
  Value pairsPer(Value tokens) const {
    return div(total(constant(1, row)),
               select(isAboveZero(tokens), tokens, number(1)));
  }
  /// Returns 1 - e^x for x <= 0, accurate to f32 rounding even near 0.
  Value oneMinusExp(Value x) const {
    Value series = constant(1.0 / 40320, row);
    for (double factor : {5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0})
      series = add(mul(series, x), constant(1 / factor, row));
    return select(compare(Pred::OGT, x, constant(-0.5, row)),
                  neg(mul(series, x)), sub(constant(1, row), exp(x)));
  }

  /// Returns the sums of Model_PairLoss, of losses, rewards and
  /// log-probabilities. A pair is right if the chosen answer has the larger
  /// reward.
  llvm::SmallVector<Value> sums(Value loss, Value rewards, Value logps) const {
    Value one = constant(1, row), zero = constant(0, row);
    Value isRight = compare(Pred::OGT, rewards, ofRejected(rewards));
    return {loss,
            total(one),
            total(rewards),
            total(ofRejected(rewards)),
            total(select(isRight, one, zero)),
            total(logps),
            total(ofRejected(logps))};
  }

private:
  Value isPair;
};

/// Checks constraints C1 and C2 of preference losses.
mlir::LogicalResult
verifySequenceLoss(mlir::Operation *op,
                   llvm::ArrayRef<llvm::StringLiteral> readNames,
                   bool hasHalves);

} // namespace qlora::model

#endif // QLORA_DIALECTS_MODEL_PAIRARITHMETIC_H
