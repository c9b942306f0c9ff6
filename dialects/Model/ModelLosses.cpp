// SPDX-License-Identifier: MIT

// Types and constraints of losses, and the arithmetic of orpo_loss and
// kto_loss. DpoLosses.cpp has that of dpo_loss.

#include "dialects/Model/PairArithmetic.h"

using namespace mlir;
using namespace qlora::model;

SmallVector<Type> qlora::model::lossTypes(Value losses,
                                          ArrayRef<StringLiteral> readNames) {
  RankedTensorType lines = tensorOf(losses);
  return llvm::map_to_vector(readNames, [&](StringRef name) -> Type {
    return name.empty() ? lines : lines.clone({1});
  });
}

LogicalResult qlora::model::verifySequenceLoss(
    Operation *op, ArrayRef<StringLiteral> readNames, bool hasHalves) {
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
// orpo_loss
//===----------------------------------------------------------------------===//

LogicalResult OrpoLossOp::verify() {
  return verifySequenceLoss(*this, kReadNames, true);
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
  Value perToken = a.pairsPer(tokens);
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
  return verifySequenceLoss(*this, kReadNames, getMismatched());
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
  Value divergence = getMismatched()
                         ? meanDivergence(a, answers, lines, labels, ratio)
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
