// SPDX-License-Identifier: MIT

// dpo_loss: the functions of PairLosses.def with their derivatives, and the sum
// of a list of losses.

#include "dialects/Model/PairArithmetic.h"

using namespace mlir;
using namespace qlora::model;

namespace {

/// What answers are measured by (PairLosses.def).
enum class Measure { Reward, Ratio, Mean, MeanReward, Tokens };

/// The value of a function of x, and minus its derivative.
struct Term {
  Value value, pull;
};

using Function = Term (*)(const PairArithmetic &, DpoLossOp, Value x);

struct PairLoss {
  StringLiteral word;
  Measure measure;
  Function margin, chosen, rejected; ///< null: no such term

  bool isPerToken() const {
    return measure == Measure::Mean || measure == Measure::MeanReward;
  }
  bool isReward() const {
    return measure == Measure::Reward || measure == Measure::MeanReward;
  }
};

} // namespace

//===----------------------------------------------------------------------===//
// Functions of one answer, or of the difference of two
//===----------------------------------------------------------------------===//

static constexpr Function None = nullptr;

/// Returns -log sigmoid(x) + slope * x.
static Term tilted(const PairArithmetic &a, Value x, double slope) {
  Term term = {a.softplusOfMinus(x), a.sigmoid(a.neg(x))};
  if (slope == 0)
    return term;
  return {a.add(term.value, a.times(x, slope)),
          a.sub(term.pull, a.constant(slope, a.row))};
}

/// -log sigmoid(x)
static Term likely(const PairArithmetic &a, DpoLossOp, Value x) {
  return tilted(a, x, 0);
}

/// -log sigmoid(-x)
static Term unlikely(const PairArithmetic &a, DpoLossOp, Value x) {
  return {a.softplusOfMinus(a.neg(x)), a.neg(a.sigmoid(x))};
}

/// -(1 - s) log sigmoid(x) - s log sigmoid(-x), with the label smoothing s. The
/// logarithms differ by x.
static Term smoothed(const PairArithmetic &a, DpoLossOp op, Value x) {
  return tilted(a, x, op.getLabelSmoothing().convertToDouble());
}

/// (-(1 - s) log sigmoid(x) + s log sigmoid(-x)) / (1 - 2 s)
static Term robust(const PairArithmetic &a, DpoLossOp op, Value x) {
  const double smoothing = op.getLabelSmoothing().convertToDouble();
  return tilted(a, x, -smoothing / (1 - 2 * smoothing));
}

/// -log sigmoid(x - gamma), smoothed
static Term simpo(const PairArithmetic &a, DpoLossOp op, Value x) {
  const double gamma = op.getGamma().convertToDouble();
  return smoothed(a, op, a.sub(x, a.constant(gamma, a.row)));
}

/// -log sigmoid(x) - log sigmoid(-x) / 2
static Term ncaChosen(const PairArithmetic &a, DpoLossOp, Value x) {
  const Term likely = tilted(a, x, 1.0 / 3);
  return {a.times(likely.value, 1.5), a.times(likely.pull, 1.5)};
}

/// -log sigmoid(-x) / 2
static Term ncaRejected(const PairArithmetic &a, DpoLossOp op, Value x) {
  const Term whole = unlikely(a, op, x);
  return {a.times(whole.value, 0.5), a.times(whole.pull, 0.5)};
}

/// max(0, 1 - x), whose derivative at 1 is 0
static Term hinge(const PairArithmetic &a, DpoLossOp, Value x) {
  Value one = a.constant(1, a.row);
  return {a.belowOne(x, a.sub(one, x)), a.belowOne(x, one)};
}

static Term squared(const PairArithmetic &a, Value x) {
  return {a.mul(x, x), a.times(x, -2)};
}

/// (x - 1 / (2 beta))^2
static Term fromTarget(const PairArithmetic &a, DpoLossOp op, Value x) {
  const double target = 0.5 / op.getBeta().convertToDouble();
  return squared(a, a.sub(x, a.constant(target, a.row)));
}

/// (x + 1 / (2 beta))^2
static Term fromMinusTarget(const PairArithmetic &a, DpoLossOp op, Value x) {
  const double target = 0.5 / op.getBeta().convertToDouble();
  return squared(a, a.add(x, a.constant(target, a.row)));
}

/// sigmoid(x)
static Term rising(const PairArithmetic &a, DpoLossOp, Value x) {
  Value value = a.sigmoid(x);
  return {value, a.neg(a.mul(value, a.sigmoid(a.neg(x))))};
}

/// sigmoid(-x)
static Term falling(const PairArithmetic &a, DpoLossOp, Value x) {
  Value value = a.sigmoid(a.neg(x));
  return {value, a.mul(value, a.sigmoid(x))};
}

/// The KL divergence of (p, 1 - p) from (1 - s, s), with p = sigmoid(x) and the
/// label smoothing s.
static Term exo(const PairArithmetic &a, DpoLossOp op, Value x) {
  const double smoothing = op.getLabelSmoothing().convertToDouble();
  const double chosen = std::log1p(-smoothing), rejected = std::log(smoothing);
  Value minus = a.neg(x);
  Value p = a.sigmoid(x), q = a.sigmoid(minus);
  Value ofP = a.add(a.softplusOfMinus(x), a.constant(chosen, a.row));
  Value ofQ = a.add(a.softplusOfMinus(minus), a.constant(rejected, a.row));
  Value slope = a.add(x, a.constant(rejected - chosen, a.row));
  return {a.neg(a.add(a.mul(p, ofP), a.mul(q, ofQ))),
          a.neg(a.mul(a.mul(p, q), slope))};
}

/// -(1 - m) log sigmoid(x) + m e^-x, with m = sigmoid(x / tau)
static Term discopop(const PairArithmetic &a, DpoLossOp op, Value x) {
  const double tau = op.getTau().convertToDouble();
  Value steep = a.times(x, 1 / tau);
  Value m = a.sigmoid(steep), rest = a.sigmoid(a.neg(steep));
  const Term logistic = tilted(a, x, 0);
  Value power = a.exp(a.neg(x));
  Value blend = a.times(a.mul(m, rest), 1 / tau); // dm / dx
  return {a.add(a.mul(logistic.value, rest), a.mul(power, m)),
          a.add(a.add(a.mul(logistic.pull, rest), a.mul(power, m)),
                a.mul(a.sub(logistic.value, power), blend))};
}

static constexpr PairLoss kPairLosses[] = {
#define QLORA_PAIR_LOSS(WORD, OBJECTIVES, MEASURE, MARGIN, CHOSEN, REJECTED)   \
  {#WORD, Measure::MEASURE, MARGIN, CHOSEN, REJECTED},
#include "runtime/ABI/PairLosses.def"
};

static const PairLoss *findPairLoss(StringRef word) {
  const auto *found = llvm::find_if(
      kPairLosses, [&](const PairLoss &loss) { return loss.word == word; });
  return found == std::end(kPairLosses) ? nullptr : found;
}

//===----------------------------------------------------------------------===//
// dpo_loss
//===----------------------------------------------------------------------===//

LogicalResult DpoLossOp::verify() {
  if (failed(verifySequenceLoss(*this, kReadNames, true)))
    return failure();
  if (getKinds().empty() || getKinds().size() != getWeights().size())
    return emitOpError("(C3) expects a weight for each kind");
  for (StringRef kind : getKinds().getAsValueRange<StringAttr>())
    if (!findPairLoss(kind))
      return emitOpError("(C3) has no loss '") << kind << "'";
  return success();
}

namespace {

/// Adds up the losses of a list, and their derivatives by the sequences' token
/// losses. Values are per pair.
class LossList {
public:
  LossList(const PairArithmetic &a, DpoLossOp op, ValueRange arguments);

  void add(const PairLoss &loss, double weight);
  SmallVector<Value> results();

private:
  static void addTo(const PairArithmetic &a, Value &sum, Value x) {
    sum = sum ? a.add(sum, x) : x;
  }
  Value scaled(Value x, double factor) const {
    return factor == 1 ? x : a.times(x, factor);
  }
  void addChosen(Value pull) { addTo(a, chosenSlope, pull); }
  void addRejected(Value pull) { addTo(a, rejectedSlope, pull); }

  const PairArithmetic &a;
  DpoLossOp op;
  Value losses, ratio, inverse, perToken, chosenLoss;
  Value value, chosenSlope, rejectedSlope, tokenLoss;
  bool isPerToken = false;
};

} // namespace

LossList::LossList(const PairArithmetic &a, DpoLossOp op, ValueRange arguments)
    : a(a), op(op), losses(arguments[0]) {
  Value labels = arguments[1];
  ratio = op.getReference() ? a.sub(arguments[2], losses) : a.neg(losses);
  inverse = a.inverseOf(labels, a.constant(1, a.row));
  perToken = a.pairsPer(a.total(labels));
  chosenLoss = a.mul(perToken, a.total(losses));
}

void LossList::add(const PairLoss &loss, double weight) {
  if (loss.measure == Measure::Tokens) {
    addTo(a, tokenLoss, scaled(chosenLoss, weight));
    addChosen(scaled(a.splat(perToken, a.row), weight));
    return;
  }
  isPerToken |= loss.isPerToken();
  const double scale = loss.isReward() ? op.getBeta().convertToDouble() : 1;
  Value measure = loss.isPerToken() ? a.mul(ratio, inverse) : ratio;
  Value rejected = a.ofRejected(measure);
  // The derivative of a measure by its sequence's loss is -scale, per token.
  const auto slope = [&](Value pull, bool isRejected) {
    Value slope = scaled(pull, scale * weight);
    if (!loss.isPerToken())
      return slope;
    return a.mul(slope, isRejected ? a.ofRejected(inverse) : inverse);
  };
  const auto term = [&](Function function, Value x) {
    const Term term = function(a, op, scaled(x, scale));
    addTo(a, value, scaled(term.value, weight));
    return term.pull;
  };
  if (loss.margin) {
    Value pull = term(loss.margin, a.sub(measure, rejected));
    addChosen(slope(pull, false));
    addRejected(a.neg(slope(pull, true)));
  }
  if (loss.chosen)
    addChosen(slope(term(loss.chosen, measure), false));
  if (loss.rejected)
    addRejected(slope(term(loss.rejected, rejected), true));
}

SmallVector<Value> LossList::results() {
  Value none = a.constant(0, a.row);
  SmallVector<Value> results = {
      a.toLines(chosenSlope, rejectedSlope ? rejectedSlope : none)};
  Value sum = value ? a.total(value) : tokenLoss;
  if (value && tokenLoss)
    sum = a.add(sum, tokenLoss);
  const bool isMean = isPerToken && !op.getReference();
  Value logps = a.neg(isMean ? a.mul(losses, inverse) : losses);
  Value rewards =
      a.times(isMean ? logps : ratio, op.getBeta().convertToDouble());
  results.append(a.sums(sum, rewards, logps));
  results.push_back(chosenLoss);
  return results;
}

SmallVector<Value> DpoLossOp::buildRow(OpBuilder &builder,
                                       ValueRange arguments) {
  PairArithmetic a(builder, getLoc(), arguments[1]);
  LossList list(a, *this, arguments);
  for (auto [kind, weight] :
       llvm::zip(getKinds().getAsValueRange<StringAttr>(), getWeights()))
    list.add(*findPairLoss(kind), weight);
  return list.results();
}
