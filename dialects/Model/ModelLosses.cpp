// SPDX-License-Identifier: MIT

// Shared helpers of preference losses, and the arithmetic of each. A row has
// one value per sequence of the batch. In pair losses the first half of a row
// has the chosen answers; row_rotate moves the negated second half to it.

#include "dialects/Model/Arithmetic.h"

using namespace mlir;
using namespace qlora::model;

namespace {

class LineArithmetic : public Arithmetic {
public:
  using Pred = arith::CmpFPredicate;

  LineArithmetic(OpBuilder &builder, Location loc, Type row)
      : Arithmetic(builder, loc), row(row) {}

  Value isAboveZero(Value x) const {
    return compare(Pred::OGT, x, constant(0, x.getType()));
  }
  /// Returns `x` in sequences [begin, end), 0 in others.
  Value within(int64_t begin, int64_t end, Value x) const {
    SmallVector<float> mask(cast<RankedTensorType>(row).getDimSize(0), 0);
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
  PairArithmetic(OpBuilder &builder, Location loc, Value labels)
      : LineArithmetic(builder, loc, labels.getType()) {
    const int64_t lines = cast<RankedTensorType>(row).getDimSize(0);
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
  Value exp(Value x) const { return math::ExpOp::create(b, loc, x); }
  Value log(Value x) const { return math::LogOp::create(b, loc, x); }
  /// Returns -log sigmoid(x), without overflow in any term.
  Value softplusOfMinus(Value x) const {
    Value zero = constant(0, row);
    Value positive = select(compare(Pred::OLT, x, zero), neg(x), zero);
    Value small = exp(neg(math::AbsFOp::create(b, loc, x)));
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
  SmallVector<Value> sums(Value loss, Value rewards, Value logps) const {
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

} // namespace

SmallVector<Type> qlora::model::lossTypes(Value losses,
                                          ArrayRef<StringLiteral> readNames) {
  RankedTensorType lines = tensorOf(losses);
  return llvm::map_to_vector(readNames, [&](StringRef name) -> Type {
    return name.empty() ? lines : lines.clone({1});
  });
}

static LogicalResult
verifyLines(Operation *op, ArrayRef<StringLiteral> readNames, bool hasHalves) {
  auto lines = tensorOf(op->getOperand(0));
  const auto slopes = llvm::count(readNames, "");
  SmallVector<Type> results(op->getResultTypes());
  if (lines.getRank() != 1 || !lines.getElementType().isF32() ||
      (hasHalves && !lines.isDynamicDim(0) && lines.getDimSize(0) % 2) ||
      llvm::any_of(op->getOperandTypes(),
                   [&](Type type) { return type != lines; }) ||
      llvm::any_of(ArrayRef(results).take_front(slopes),
                   [&](Type type) { return type != lines; }))
    return op->emitOpError("(C1) expects operands of type f32 [B], ")
           << (hasHalves ? "B even, " : "") << "but got " << lines;
  for (Type type : ArrayRef(results).drop_front(slopes))
    if (type != lines.clone({1}))
      return op->emitOpError("(C2) expects sums of type ")
             << lines.clone({1}) << ", but got " << type;
  return success();
}

//===----------------------------------------------------------------------===//
// head_loss
//===----------------------------------------------------------------------===//

StringRef HeadLossOp::getReadName(unsigned result) {
  static constexpr StringLiteral kNames[] = {"loss_sum", "label_count",
                                             "correct"};
  const bool isOfSequences =
      tensorOf(getLoss()).getShape() != ArrayRef<int64_t>{1};
  return isOfSequences && result < 2 ? StringRef() : StringRef(kNames[result]);
}

//===----------------------------------------------------------------------===//
// dpo_loss
//===----------------------------------------------------------------------===//

LogicalResult DpoLossOp::verify() {
  return verifyLines(*this, kReadNames, true);
}

/// Returns minus the derivative of a pair's loss with respect to z.
static Value pullOf(const PairArithmetic &a, DpoLoss kind, Value z) {
  switch (kind) {
  case DpoLoss::Sigmoid:
    return a.sigmoid(a.neg(z));
  case DpoLoss::Hinge:
    return a.belowOne(z, a.constant(1, a.row));
  case DpoLoss::Ipo:
    return a.times(z, -2);
  }
  llvm_unreachable("a loss without a derivative");
}

static Value lossOf(const PairArithmetic &a, DpoLoss kind, Value z) {
  switch (kind) {
  case DpoLoss::Sigmoid:
    return a.softplusOfMinus(z);
  case DpoLoss::Hinge:
    return a.belowOne(z, a.sub(a.constant(1, a.row), z));
  case DpoLoss::Ipo:
    return a.mul(z, z);
  }
  llvm_unreachable("a loss without a value");
}

SmallVector<Value> DpoLossOp::buildRow(OpBuilder &builder,
                                       ValueRange arguments) {
  PairArithmetic a(builder, getLoc(), arguments[1]);
  const double beta = getBeta().convertToDouble();
  Value ratio = a.sub(arguments[2], arguments[0]);
  SmallVector<Value> results;
  Value z;
  if (getKind() == DpoLoss::Ipo) {
    Value inverse = a.inverseOf(arguments[1], a.constant(1, a.row));
    Value mean = a.mul(ratio, inverse);
    z = a.sub(a.sub(mean, a.ofRejected(mean)), a.constant(0.5 / beta, a.row));
    // dz / d(loss of the chosen answer) is -1 / labels.
    Value pull = pullOf(a, getKind(), z);
    results.push_back(a.toLines(a.mul(pull, inverse),
                                a.neg(a.mul(pull, a.ofRejected(inverse)))));
  } else {
    z = a.times(a.sub(ratio, a.ofRejected(ratio)), beta);
    // dz / d(loss of the chosen answer) is -beta.
    Value slope = a.times(pullOf(a, getKind(), z), beta);
    results.push_back(a.toLines(slope, a.neg(slope)));
  }
  results.append(a.sums(a.total(lossOf(a, getKind(), z)), a.times(ratio, beta),
                        a.neg(arguments[0])));
  return results;
}

//===----------------------------------------------------------------------===//
// orpo_loss
//===----------------------------------------------------------------------===//

LogicalResult OrpoLossOp::verify() {
  return verifyLines(*this, kReadNames, true);
}

SmallVector<Value> OrpoLossOp::buildRow(OpBuilder &builder,
                                        ValueRange arguments) {
  Value losses = arguments[0], labels = arguments[1];
  PairArithmetic a(builder, getLoc(), labels);
  const double beta = getBeta().convertToDouble();
  Value one = a.constant(1, a.row);
  Value inverse = a.inverseOf(labels, one);
  Value logp = a.neg(a.mul(losses, inverse));
  Value rest = a.oneMinusExp(logp);
  Value odds = a.sub(logp, a.log(rest));
  Value z = a.sub(odds, a.ofRejected(odds));
  // perToken * all: the mean loss of all tokens of the chosen sequences, times
  // the number of pairs.
  Value tokens = a.total(a.add(labels, arguments[3]));
  Value perToken = a.div(
      a.total(one), a.select(a.isAboveZero(tokens), tokens, a.number(1)));
  Value all = a.total(a.add(losses, arguments[2]));
  Value chosenLoss = a.mul(perToken, all);
  Value oddsLoss = a.total(a.softplusOfMinus(z));
  Value loss = a.add(chosenLoss, a.mul(a.number(beta), oddsLoss));
  // d(log odds) / d(loss) is -1 / (labels (1 - p)).
  Value pull = a.times(a.sigmoid(a.neg(z)), beta);
  Value steep = a.div(inverse, rest);
  Value everyToken = a.splat(perToken, a.row);
  Value chosen = a.add(everyToken, a.mul(pull, steep));
  Value rejected = a.neg(a.mul(pull, a.ofRejected(steep)));
  SmallVector<Value> results = {a.toLines(chosen, rejected),
                                a.ofPairs(everyToken)};
  results.append(a.sums(loss, a.times(logp, beta), logp));
  results.append({a.total(z), chosenLoss, oddsLoss});
  return results;
}

//===----------------------------------------------------------------------===//
// kto_loss
//===----------------------------------------------------------------------===//

LogicalResult KtoLossOp::verify() {
  return verifyLines(*this, kReadNames, getMismatched());
}

/// Returns the mean of `ratio` over the labelled sequences in [begin, end), or
/// 0 if the mean is negative. NaN stays NaN, so that clip_norm detects it.
static Value meanDivergence(const LineArithmetic &a, int64_t begin, int64_t end,
                            Value labels, Value ratio) {
  Value counts = a.isAboveZero(a.within(begin, end, labels));
  Value count = a.totalWhere(counts, a.constant(1, a.row));
  Value mean = a.div(a.totalWhere(counts, ratio),
                     a.select(a.isAboveZero(count), count, a.number(1)));
  Value isNegative = a.compare(arith::CmpFPredicate::OLT, mean, a.number(0));
  return a.select(isNegative, a.number(0), mean);
}

SmallVector<Value> KtoLossOp::buildRow(OpBuilder &builder,
                                       ValueRange arguments) {
  Value losses = arguments[0], labels = arguments[1], chosen = arguments[3];
  LineArithmetic a(builder, getLoc(), losses.getType());
  const double beta = getBeta().convertToDouble();
  const double rejectedWeight = getUndesirableWeight().convertToDouble();
  const int64_t lines = getRowColumns();
  const int64_t answers = getMismatched() ? lines / 2 : lines;
  Value one = a.constant(1, a.row);
  Value ratio = a.sub(arguments[2], losses);
  Value divergence =
      getMismatched() ? meanDivergence(a, answers, lines, labels, ratio)
                      : a.number(0);
  Value sign = a.sub(a.times(chosen, 2), one);
  Value z =
      a.times(a.mul(sign, a.sub(ratio, a.splat(divergence, a.row))), beta);
  Value weight = a.add(
      a.times(chosen, getDesirableWeight().convertToDouble() - rejectedWeight),
      a.constant(rejectedWeight, a.row));
  Value loss = a.mul(weight, a.sigmoid(a.neg(z)));
  // dz / d(loss) is -sign * beta.
  Value slope = a.times(a.mul(a.mul(loss, a.sigmoid(z)), sign), beta);
  Value isAnswer = a.isAboveZero(a.within(0, answers, labels));
  Value rejected = a.sub(one, chosen);
  const auto total = [&](Value x) { return a.totalWhere(isAnswer, x); };
  const auto totalOf = [&](Value side, Value x) {
    return total(a.mul(side, x));
  };
  Value rewards = a.times(ratio, beta), logps = a.neg(losses);
  Value count = total(one);
  return {a.select(isAnswer, slope, a.constant(0, a.row)),
          total(loss),
          count,
          totalOf(chosen, rewards),
          totalOf(rejected, rewards),
          totalOf(chosen, logps),
          totalOf(rejected, logps),
          total(chosen),
          a.mul(divergence, count)};
}
