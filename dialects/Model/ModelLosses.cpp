// SPDX-License-Identifier: MIT

// What the objectives of pairs have in common, and the arithmetic of each. A
// row is all lines of a batch, those of the chosen answers in its first half:
// turned by row_rotate, the first half has the negatives of the second.

#include "dialects/Model/Arithmetic.h"

using namespace mlir;
using namespace qlora::model;

namespace {

/// Rows that say something of pairs have it in their first half.
class PairArithmetic : public Arithmetic {
public:
  using Pred = arith::CmpFPredicate;

  PairArithmetic(OpBuilder &builder, Location loc, Value labels)
      : Arithmetic(builder, loc), row(labels.getType()) {
    const int64_t lines = cast<RankedTensorType>(row).getDimSize(0);
    SmallVector<float> first(lines, 0);
    std::fill_n(first.begin(), lines / 2, 1.0f);
    Value isFirst = RowConstantOp::create(b, loc, row, first);
    Value both = mul(isFirst, sub(labels, turned(labels)));
    isPair = compare(Pred::OGT, both, constant(0, row));
  }

  Value turned(Value x) const {
    return RowRotateOp::create(b, loc, row, x, 0);
  }
  /// Of the line of the other answer.
  Value ofRejected(Value x) const { return neg(turned(x)); }
  /// 0 where there is no pair, whatever stands there.
  Value ofPairs(Value x) const { return select(isPair, x, constant(0, row)); }
  Value total(Value x) const { return sum(ofPairs(x)); }
  /// `chosen` in the lines of chosen answers, `rejected` of their pairs in those
  /// of the rejected ones.
  Value toLines(Value chosen, Value rejected) const {
    return add(ofPairs(chosen), turned(ofPairs(rejected)));
  }
  Value exp(Value x) const { return math::ExpOp::create(b, loc, x); }
  Value log(Value x) const { return math::LogOp::create(b, loc, x); }
  /// -log sigmoid(x), of which no part overflows.
  Value softplusOfMinus(Value x) const {
    Value zero = constant(0, row);
    Value positive = select(compare(Pred::OLT, x, zero), neg(x), zero);
    Value small = exp(neg(math::AbsFOp::create(b, loc, x)));
    return add(positive, log(add(small, constant(1, row))));
  }
  /// 1 - e^x for x <= 0, to f32's rounding also where x is nearly 0.
  Value oneMinusExp(Value x) const {
    Value series = constant(1.0 / 40320, row);
    for (double factor : {5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0})
      series = add(mul(series, x), constant(1 / factor, row));
    return select(compare(Pred::OGT, x, constant(-0.5, row)),
                  neg(mul(series, x)), sub(constant(1, row), exp(x)));
  }

  /// The sums of every objective (Model_PairLoss): of losses, rewards and
  /// logarithms of probabilities, whose larger reward is right.
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

  const Type row;

private:
  Value isPair;
};

} // namespace

/// As Model_PairLoss has them, behind `first` results that are rows.
static StringRef readNameOf(unsigned result, unsigned first) {
  static constexpr StringLiteral kNames[] = {
      "loss_sum",    "label_count",  "chosen_rewards", "rejected_rewards",
      "right_pairs", "chosen_logps", "rejected_logps"};
  return result < first ? StringRef() : StringRef(kNames[result - first]);
}

static LogicalResult verifyPairs(Operation *op, unsigned slopes) {
  auto lines = tensorOf(op->getOperand(0));
  SmallVector<Type> results(op->getResultTypes());
  if (lines.getRank() != 1 || !lines.getElementType().isF32() ||
      (!lines.isDynamicDim(0) && lines.getDimSize(0) % 2) ||
      llvm::any_of(op->getOperandTypes(),
                   [&](Type type) { return type != lines; }) ||
      llvm::any_of(ArrayRef(results).take_front(slopes),
                   [&](Type type) { return type != lines; }))
    return op->emitOpError("(C1) expects lines of type f32 [B], B even, but got ")
           << lines;
  for (Type type : ArrayRef(results).drop_front(slopes))
    if (type != lines.clone({1}))
      return op->emitOpError("(C2) expects sums of type ")
             << lines.clone({1}) << ", but got " << type;
  return success();
}

static SmallVector<MapAttr> linesOf(Operation *op) {
  return SmallVector<MapAttr>(
      op->getNumOperands(), MapAttr::get(op->getContext(), MapKind::Full, 1));
}

//===----------------------------------------------------------------------===//
// head_loss
//===----------------------------------------------------------------------===//

StringRef HeadLossOp::getReadName(unsigned result) {
  static constexpr StringLiteral kNames[] = {"loss_sum", "label_count",
                                             "correct"};
  const bool isOfLines =
      tensorOf(getLoss()).getShape() != ArrayRef<int64_t>{1};
  return isOfLines && result < 2 ? StringRef() : StringRef(kNames[result]);
}

//===----------------------------------------------------------------------===//
// dpo_loss
//===----------------------------------------------------------------------===//

LogicalResult DpoLossOp::verify() { return verifyPairs(*this, 1); }
StringRef DpoLossOp::getReadName(unsigned result) {
  return readNameOf(result, 1);
}
bool DpoLossOp::isScalarResult(unsigned result) { return result > 0; }
int64_t DpoLossOp::getRowColumns() { return columnsOf(getLosses()); }
SmallVector<MapAttr> DpoLossOp::getRowMaps() { return linesOf(*this); }

SmallVector<Value> DpoLossOp::buildRow(OpBuilder &builder,
                                       ValueRange arguments) {
  PairArithmetic a(builder, getLoc(), arguments[1]);
  const double beta = getBeta().convertToDouble();
  Value ratio = a.sub(arguments[2], arguments[0]);
  Value z = a.times(a.sub(ratio, a.ofRejected(ratio)), beta);
  // z falls with the loss of the chosen answer.
  Value slope = a.times(a.sigmoid(a.neg(z)), beta);
  SmallVector<Value> results = {a.toLines(slope, a.neg(slope))};
  results.append(
      a.sums(a.total(a.softplusOfMinus(z)), a.times(ratio, beta), a.neg(arguments[0])));
  return results;
}

//===----------------------------------------------------------------------===//
// orpo_loss
//===----------------------------------------------------------------------===//

LogicalResult OrpoLossOp::verify() { return verifyPairs(*this, 2); }
StringRef OrpoLossOp::getReadName(unsigned result) {
  return readNameOf(result, 2);
}
bool OrpoLossOp::isScalarResult(unsigned result) { return result > 1; }
int64_t OrpoLossOp::getRowColumns() { return columnsOf(getLosses()); }
SmallVector<MapAttr> OrpoLossOp::getRowMaps() { return linesOf(*this); }

SmallVector<Value> OrpoLossOp::buildRow(OpBuilder &builder,
                                        ValueRange arguments) {
  Value losses = arguments[0], labels = arguments[1];
  PairArithmetic a(builder, getLoc(), labels);
  const double beta = getBeta().convertToDouble();
  Value one = a.constant(1, a.row);
  // A line without labels has no answer, and is divided by 1.
  Value hasLabels = a.compare(PairArithmetic::Pred::OGT, labels,
                              a.constant(0, a.row));
  Value inverse = a.div(one, a.select(hasLabels, labels, one));
  Value logp = a.neg(a.mul(losses, inverse));
  Value rest = a.oneMinusExp(logp);
  Value odds = a.sub(logp, a.log(rest));
  Value z = a.sub(odds, a.ofRejected(odds));
  // Of all tokens of the chosen lines, times the pairs.
  Value tokens = a.total(a.add(labels, arguments[3]));
  Value hasTokens = a.compare(PairArithmetic::Pred::OGT, tokens, a.number(0));
  Value perToken =
      a.div(a.total(one), a.select(hasTokens, tokens, a.number(1)));
  Value all = a.total(a.add(losses, arguments[2]));
  Value loss = a.add(a.mul(perToken, all),
                     a.mul(a.number(beta), a.total(a.softplusOfMinus(z))));
  // Logarithms of odds fall with the loss by 1 / (labels (1 - p)).
  Value pull = a.times(a.sigmoid(a.neg(z)), beta);
  Value steep = a.div(inverse, rest);
  Value everyToken = a.splat(perToken, a.row);
  Value chosen = a.add(everyToken, a.mul(pull, steep));
  Value rejected = a.neg(a.mul(pull, a.ofRejected(steep)));
  SmallVector<Value> results = {a.toLines(chosen, rejected),
                                a.ofPairs(everyToken)};
  results.append(a.sums(loss, a.times(logp, beta), logp));
  return results;
}
