// SPDX-License-Identifier: MIT

// Implements the orders whole, padded and step packing.

#include "runtime/Data/Schedule.h"

#include <algorithm>
#include <numeric>

#include "runtime/Data/RowPacking.h"
#include "runtime/Data/StepPacking.h"

namespace qlora {

int64_t Schedule::stepsPerEpoch(int64_t perStep) const {
  return (count() + perStep - 1) / perStep;
}

double Schedule::epochAfter(int64_t steps, int64_t perStep) const {
  const double whole = static_cast<double>(count());
  if (!endsEpochs())
    return static_cast<double>(steps * perStep) / whole;
  const int64_t stepsInEpoch = stepsPerEpoch(perStep);
  const int64_t inEpoch = std::min(steps % stepsInEpoch * perStep, count());
  return static_cast<double>(steps / stepsInEpoch) +
         static_cast<double>(inEpoch) / whole;
}

/// Returns the layouts of shape.ranks micro-batches from index `first` on. In
/// lockstep, all get the largest shape among them. `smallest(index)` returns a
/// layout in the smallest shape that fits.
template <typename Smallest>
static std::vector<BatchLayout> roundOf(int64_t first, const StepShape &shape,
                                        const Smallest &smallest) {
  std::vector<BatchLayout> round;
  BatchShape largest;
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    round.push_back(smallest(first + rank));
    largest = std::max(largest, round.back().shape);
  }
  if (shape.inLockstep)
    for (BatchLayout &layout : round)
      layout.shape = largest;
  return round;
}

std::vector<BatchLayout> Schedule::round(int64_t step, int64_t k,
                                         const StepShape &shape) {
  return roundOf(k * shape.ranks, shape,
                 [&](int64_t index) { return smallestAt(step, index, shape); });
}

std::vector<BatchLayout> Schedule::lastRound(int64_t step,
                                             const StepShape &shape) {
  const MicroBatchAssignment deal = this->deal(step, shape);
  if (shape.inLockstep)
    return round(step, deal.size(0) - 1, shape);
  std::vector<BatchLayout> last;
  for (int64_t rank = 0; rank < shape.ranks; ++rank)
    last.push_back(
        smallestAt(step, deal.number(rank, deal.size(rank) - 1), shape));
  return last;
}

std::vector<BatchLayout> Schedule::roundInOrder(int64_t number,
                                                const StepShape &shape) {
  return roundOf(number / shape.ranks * shape.ranks, shape,
                 [&](int64_t each) { return smallestInOrder(each); });
}

BatchLayout Schedule::at(int64_t step, int64_t index, const StepShape &shape) {
  if (!shape.inLockstep)
    return smallestAt(step, index, shape);
  return round(step, index / shape.ranks, shape)[index % shape.ranks];
}

BatchLayout Schedule::inOrder(int64_t number, const StepShape &shape) {
  if (!shape.inLockstep)
    return smallestInOrder(number);
  return roundInOrder(number, shape)[number % shape.ranks];
}

namespace {

/// Rows that stay in one sequence: a single row, or several packed rows.
struct Unit {
  std::vector<int64_t> rows;
  int64_t length = 0;
};

/// The orders `padded` and `whole`.
class PaddedSchedule : public Schedule {
public:
  PaddedSchedule(std::vector<Unit> units, const CompiledVariants &variants,
                 bool isWhole, uint64_t seed, std::vector<int64_t> answers = {})
      : variants(variants), units(std::move(units)), isWhole(isWhole),
        seed(seed), answers(std::move(answers)) {}

  int64_t count() const override {
    return (unitCount() + unitsOfBatch() - 1) / unitsOfBatch();
  }

protected:
  BatchLayout smallestAt(int64_t step, int64_t index,
                         const StepShape &shape) override;
  BatchLayout smallestInOrder(int64_t number) override;
  bool endsEpochs() const override { return !isWhole; }
  int64_t unitCount() const { return static_cast<int64_t>(units.size()); }
  /// Units of a full micro-batch. In a token file each sequence is a unit.
  int64_t unitsOfBatch() const {
    return variants.batch / (isWhole ? 1 : variants.sides);
  }
  /// Returns the units in the order of an epoch.
  const std::vector<int64_t> &orderOf(int64_t epoch);

  const CompiledVariants variants;
  const std::vector<Unit> units;

private:
  template <typename UnitAt>
  BatchLayout layout(int64_t number, const UnitAt &unitAt) const;
  int64_t longestMismatched(const BatchLayout &layout) const;

  const bool isWhole;
  const uint64_t seed;
  const std::vector<int64_t> answers; ///< answer tokens of each row, or empty
  int64_t orderedEpoch = -1; ///< the epoch of `order`
  std::vector<int64_t> order;
};

/// The order `step packing`. Without --packing, each unit is one row.
class StepPackingSchedule final : public PaddedSchedule {
public:
  StepPackingSchedule(std::vector<Unit> units, const CompiledVariants &variants,
                      uint64_t seed);

  int64_t countInOrder() const override {
    return static_cast<int64_t>(lines.size());
  }
  int64_t microBatches(int64_t step, const StepShape &shape) override {
    const auto count = static_cast<int64_t>(planOf(step, shape).size());
    return (count + shape.ranks - 1) / shape.ranks * shape.ranks;
  }

protected:
  BatchLayout smallestAt(int64_t step, int64_t index,
                         const StepShape &shape) override {
    const StepPlan &plan = planOf(step, shape);
    const auto number = static_cast<size_t>(index);
    return number < plan.size() ? layout(plan[number]) : layout({});
  }
  BatchLayout smallestInOrder(int64_t number) override {
    return number < countInOrder() ? layout(lines[static_cast<size_t>(number)])
                                   : layout({});
  }

private:
  BatchLayout layout(std::span<const int64_t> unitNumbers) const;
  const StepPlan &planOf(int64_t step, const StepShape &shape);

  StepPlan lines; ///< the units of each sequence of a pass in file order
  StepPlan plan;  ///< the units of each micro-batch of plannedStep
  int64_t plannedStep = -1;
  StepShape plannedShape;
};

} // namespace

const std::vector<int64_t> &PaddedSchedule::orderOf(int64_t epoch) {
  if (epoch != orderedEpoch)
    order = shuffledOrder(unitCount(), seed, epoch);
  orderedEpoch = epoch;
  return order;
}

/// Returns micro-batch `number` of a pass; `unitAt` maps positions to units.
template <typename UnitAt>
BatchLayout PaddedSchedule::layout(int64_t number, const UnitAt &unitAt) const {
  const int64_t first = number * unitsOfBatch();
  const int64_t end = std::min(first + unitsOfBatch(), unitCount());
  BatchLayout layout;
  int64_t longest = 0;
  for (int64_t place = first; place < end; ++place) {
    const Unit &unit = units[static_cast<size_t>(unitAt(place))];
    layout.lines.push_back(unit.rows);
    longest = std::max(longest, unit.length);
  }
  if (!answers.empty())
    longest = std::max(longest, longestMismatched(layout));
  layout.shape = {variants.batch, bucketFor(longest, variants.lengths)};
  return layout;
}

/// Returns the maximum length of a prompt with the preceding row's answer, cut
/// to the longest compiled length.
int64_t PaddedSchedule::longestMismatched(const BatchLayout &layout) const {
  int64_t longest = 0;
  for (size_t i = 0, count = layout.lines.size(); i < count; ++i) {
    const auto row = static_cast<size_t>(layout.lines[i][0]);
    const auto before =
        static_cast<size_t>(layout.lines[(i + count - 1) % count][0]);
    longest = std::max(longest,
                       units[row].length - answers[row] + answers[before]);
  }
  return std::min(longest, variants.lengths.back());
}

BatchLayout PaddedSchedule::smallestInOrder(int64_t number) {
  return layout(number, [](int64_t place) { return place; });
}

BatchLayout PaddedSchedule::smallestAt(int64_t step, int64_t index,
                                       const StepShape &shape) {
  const int64_t perStep = shape.count();
  if (isWhole)
    return smallestInOrder((step * perStep + index) % count());
  const int64_t stepsInEpoch = stepsPerEpoch(perStep);
  const std::vector<int64_t> &shuffled = orderOf(step / stepsInEpoch);
  return layout(step % stepsInEpoch * perStep + index, [&](int64_t place) {
    return shuffled[static_cast<size_t>(place)];
  });
}

/// Assigns units to the sequences of a pass in file order. A sequence has at
/// most the tokens of the largest bucket.
StepPackingSchedule::StepPackingSchedule(std::vector<Unit> given,
                                         const CompiledVariants &variants,
                                         uint64_t seed)
    : PaddedSchedule(std::move(given), variants, /*isWhole=*/false, seed) {
  int64_t tokens = variants.buckets.back();
  for (int64_t number = 0; number < unitCount(); ++number) {
    const int64_t length = units[static_cast<size_t>(number)].length;
    if (tokens + length > variants.buckets.back()) {
      lines.emplace_back();
      tokens = 0;
    }
    lines.back().push_back(number);
    tokens += length;
  }
}

BatchLayout
StepPackingSchedule::layout(std::span<const int64_t> unitNumbers) const {
  std::vector<int64_t> line;
  int64_t tokens = 0;
  for (int64_t number : unitNumbers) {
    const Unit &unit = units[static_cast<size_t>(number)];
    line.insert(line.end(), unit.rows.begin(), unit.rows.end());
    tokens += unit.length;
  }
  return {{1, bucketFor(tokens, variants.buckets)}, {std::move(line)}};
}

/// Returns the units of a padded step, redistributed to micro-batches.
const StepPlan &StepPackingSchedule::planOf(int64_t step,
                                            const StepShape &shape) {
  if (step == plannedStep && shape == plannedShape)
    return plan;
  const int64_t stepsInEpoch = stepsPerEpoch(shape.count());
  const int64_t perStep = shape.count() * variants.batch;
  const int64_t first = step % stepsInEpoch * perStep;
  const auto own = std::span(orderOf(step / stepsInEpoch))
                       .subspan(static_cast<size_t>(first))
                       .first(static_cast<size_t>(
                           std::min(perStep, unitCount() - first)));
  std::vector<int64_t> lengths;
  for (int64_t number : own)
    lengths.push_back(units[static_cast<size_t>(number)].length);
  plan = packStep(lengths,
                  {variants.buckets, variants.batch,
                   shape.assignsAsOne ? shape.count() : shape.accumulation,
                   shape.assignsAsOne ? 1 : shape.ranks, variants.costs,
                   shape.speeds});
  for (std::vector<int64_t> &numbers : plan)
    for (int64_t &number : numbers)
      number = own[static_cast<size_t>(number)];
  plannedStep = step;
  plannedShape = shape;
  return plan;
}

/// Packs rows once, in file order, so that all epochs have equally many steps.
static std::vector<Unit> makeUnits(std::span<const int64_t> lengths,
                                   int64_t capacity, bool packs) {
  std::vector<int64_t> bins(lengths.size());
  if (packs)
    bins = packFirstFit(lengths, capacity);
  else
    std::iota(bins.begin(), bins.end(), 0);
  std::vector<Unit> units(*std::ranges::max_element(bins) + 1);
  for (size_t row = 0; row < bins.size(); ++row) {
    Unit &unit = units[bins[row]];
    unit.rows.push_back(static_cast<int64_t>(row));
    unit.length += lengths[row];
  }
  return units;
}

StatusOr<std::unique_ptr<Schedule>>
Schedule::make(std::vector<int64_t> lengths, const CompiledVariants &variants,
               bool isWhole, const ScheduleOptions &options) {
  const bool hasBuckets = !variants.buckets.empty();
  if (!isWhole && options.stepPacking == true && !hasBuckets)
    return Status::invalid("step_packing: the program was compiled without it. "
                           "Fix: compile with --step-packing true");
  std::vector<Unit> units = makeUnits(lengths, variants.lengths.back(),
                                      options.packing && !isWhole);
  const bool packsSteps =
      !isWhole && hasBuckets && options.stepPacking.value_or(true);
  std::unique_ptr<Schedule> schedule;
  if (packsSteps)
    schedule = std::make_unique<StepPackingSchedule>(std::move(units), variants,
                                                     options.seed);
  else
    schedule = std::make_unique<PaddedSchedule>(
        std::move(units), variants, isWhole, options.seed, options.answers);
  return schedule;
}

/// SplitMix64 (Steele, Lea and Flood, 2014). Used because std::shuffle differs
/// between standard libraries.
static uint64_t splitMix(uint64_t &state) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Returns a uniform number in [0, bound), without bias (Lemire, 2019).
static uint64_t randomBelow(uint64_t bound, uint64_t &state) {
  while (true) {
    unsigned __int128 product =
        static_cast<unsigned __int128>(splitMix(state)) * bound;
    if (static_cast<uint64_t>(product) >= -bound % bound)
      return static_cast<uint64_t>(product >> 64);
  }
}

std::vector<int64_t> shuffledOrder(int64_t count, uint64_t seed,
                                   int64_t epoch) {
  uint64_t state = seed;
  state = splitMix(state) + static_cast<uint64_t>(epoch);
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = count - 1; i > 0; --i)
    std::swap(order[i],
              order[randomBelow(static_cast<uint64_t>(i) + 1, state)]);
  return order;
}

} // namespace qlora
