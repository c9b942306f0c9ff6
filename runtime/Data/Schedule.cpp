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

/// The orders `padded` and `whole`. A *unit* stays in one sequence: a row, or
/// several rows with --packing. Its first row identifies it.
class PaddedSchedule : public Schedule {
public:
  PaddedSchedule(std::shared_ptr<const DatasetRows> rows,
                 const CompiledVariants &variants, bool packs,
                 const ScheduleOptions &options);

  int64_t count() const override {
    return (units + unitsOfBatch() - 1) / unitsOfBatch();
  }

protected:
  using Units = std::span<const uint32_t>;

  BatchLayout smallestAt(int64_t step, int64_t index,
                         const StepShape &shape) override;
  BatchLayout smallestInOrder(int64_t number) override {
    return layout(number, orderOf(kFileOrder));
  }
  bool endsEpochs() const override { return !rows->isWhole(); }
  /// Units of a full micro-batch. In a token file each sequence is a unit.
  int64_t unitsOfBatch() const {
    return variants.batch / (rows->isWhole() ? 1 : variants.sides);
  }
  /// Returns the units in the order of an epoch, until the next call.
  Units orderOf(int64_t epoch);
  /// Appends the rows of a unit to `line`. Returns their tokens.
  int64_t append(uint32_t unit, std::vector<int64_t> &line) const;

  static constexpr int64_t kFileOrder = -1; ///< instead of an epoch

  const std::shared_ptr<const DatasetRows> rows;
  const CompiledVariants variants;
  int64_t units; ///< number of units

private:
  BatchLayout layout(int64_t number, Units order) const;
  int64_t longestMismatched(const BatchLayout &layout) const;

  const uint64_t seed;
  const bool shuffles;
  std::vector<uint32_t> before; ///< as in PackedRows; empty without --packing
  int64_t orderedEpoch = kFileOrder; ///< the epoch of `order`
  std::vector<uint32_t> order;
};

/// The order `step packing`.
class StepPackingSchedule final : public PaddedSchedule {
public:
  StepPackingSchedule(std::shared_ptr<const DatasetRows> rows,
                      const CompiledVariants &variants, bool packs,
                      const ScheduleOptions &options);

  int64_t countInOrder() const override { return std::ssize(lines); }
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
  BatchLayout smallestInOrder(int64_t number) override;

private:
  BatchLayout layout(const std::vector<int64_t> &units) const;
  const StepPlan &planOf(int64_t step, const StepShape &shape);

  /// Index of the first unit of each sequence of a pass in file order.
  std::vector<uint32_t> lines;
  StepPlan plan; ///< the units of each micro-batch of plannedStep
  int64_t plannedStep = -1;
  StepShape plannedShape;
};

} // namespace

/// Packs rows once, in file order, so that all epochs have equally many steps.
PaddedSchedule::PaddedSchedule(std::shared_ptr<const DatasetRows> given,
                               const CompiledVariants &variants, bool packs,
                               const ScheduleOptions &options)
    : rows(std::move(given)), variants(variants), units(rows->count()),
      seed(options.seed), shuffles(options.shuffles) {
  if (packs) {
    PackedRows packed =
        packFirstFit(units, variants.lengths.back(),
                     [&](int64_t row) { return rows->length(row); });
    before = std::move(packed.before);
    order = std::move(packed.firsts);
    units = std::ssize(order);
  } else {
    order.resize(static_cast<size_t>(units));
    std::iota(order.begin(), order.end(), 0);
  }
}

PaddedSchedule::Units PaddedSchedule::orderOf(int64_t epoch) {
  if (epoch == orderedEpoch)
    return order;
  orderedEpoch = epoch;
  if (before.empty())
    std::iota(order.begin(), order.end(), 0);
  auto next = order.begin();
  for (uint32_t row = 0; row < before.size(); ++row)
    if (before[row] >= row) // the first row of its unit
      *next++ = row;
  if (epoch != kFileOrder && shuffles)
    shuffle(order, seed, epoch);
  return order;
}

int64_t PaddedSchedule::append(uint32_t unit,
                               std::vector<int64_t> &line) const {
  const auto begin = std::ssize(line);
  int64_t tokens = 0;
  uint32_t row = unit;
  do {
    row = before.empty() ? row : before[row];
    line.push_back(row);
    tokens += rows->length(row);
  } while (row != unit);
  std::reverse(line.begin() + begin, line.end());
  return tokens;
}

/// Returns micro-batch `number` of a pass over the units.
BatchLayout PaddedSchedule::layout(int64_t number, Units order) const {
  const int64_t first = number * unitsOfBatch();
  const int64_t end = std::min(first + unitsOfBatch(), units);
  BatchLayout layout;
  int64_t longest = 0;
  for (int64_t place = first; place < end; ++place)
    longest = std::max(longest, append(order[static_cast<size_t>(place)],
                                       layout.lines.emplace_back()));
  if (rows->hasMismatched && !rows->isWhole())
    longest = std::max(longest, longestMismatched(layout));
  layout.shape = {variants.batch, bucketFor(longest, variants.lengths)};
  return layout;
}

/// Returns the maximum length of a prompt with the preceding row's answer, cut
/// to the longest compiled length.
int64_t PaddedSchedule::longestMismatched(const BatchLayout &layout) const {
  int64_t longest = 0;
  for (size_t i = 0, count = layout.lines.size(); i < count; ++i) {
    const int64_t row = layout.lines[i][0];
    const int64_t other = layout.lines[(i + count - 1) % count][0];
    longest = std::max(longest, rows->length(row) - rows->answer(row) +
                                    rows->answer(other));
  }
  return std::min(longest, variants.lengths.back());
}

BatchLayout PaddedSchedule::smallestAt(int64_t step, int64_t index,
                                       const StepShape &shape) {
  const int64_t perStep = shape.count();
  if (rows->isWhole())
    return smallestInOrder((step * perStep + index) % count());
  const int64_t stepsInEpoch = stepsPerEpoch(perStep);
  return layout(step % stepsInEpoch * perStep + index,
                orderOf(step / stepsInEpoch));
}

/// Assigns units to the sequences of a pass in file order. A sequence has at
/// most the tokens of the largest bucket.
StepPackingSchedule::StepPackingSchedule(
    std::shared_ptr<const DatasetRows> given, const CompiledVariants &variants,
    bool packs, const ScheduleOptions &options)
    : PaddedSchedule(std::move(given), variants, packs, options) {
  const Units order = orderOf(kFileOrder);
  int64_t tokens = variants.buckets.back();
  std::vector<int64_t> line;
  for (uint32_t i = 0; i < order.size(); ++i) {
    line.clear();
    const int64_t length = append(order[i], line);
    if (tokens + length > variants.buckets.back()) {
      lines.push_back(i);
      tokens = 0;
    }
    tokens += length;
  }
}

BatchLayout StepPackingSchedule::smallestInOrder(int64_t number) {
  const auto line = static_cast<size_t>(number);
  if (line >= lines.size())
    return layout({});
  const Units order = orderOf(kFileOrder);
  return layout({order.begin() + lines[line],
                 line + 1 < lines.size() ? order.begin() + lines[line + 1]
                                         : order.end()});
}

BatchLayout
StepPackingSchedule::layout(const std::vector<int64_t> &units) const {
  std::vector<int64_t> line;
  int64_t tokens = 0;
  for (int64_t unit : units)
    tokens += append(static_cast<uint32_t>(unit), line);
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
  const Units own =
      orderOf(step / stepsInEpoch)
          .subspan(static_cast<size_t>(first))
          .first(static_cast<size_t>(std::min(perStep, units - first)));
  std::vector<int64_t> lengths, line;
  for (uint32_t unit : own) {
    line.clear();
    lengths.push_back(append(unit, line));
  }
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

StatusOr<std::unique_ptr<Schedule>>
Schedule::make(std::shared_ptr<const DatasetRows> rows,
               const CompiledVariants &variants,
               const ScheduleOptions &options) {
  const bool isWhole = rows->isWhole();
  const bool hasBuckets = !variants.buckets.empty();
  if (!isWhole && options.stepPacking == true && !hasBuckets)
    return Status::invalid("step_packing: the program was compiled without it. "
                           "Fix: compile with --step-packing true");
  const bool packs = options.packing && !isWhole;
  std::unique_ptr<Schedule> schedule;
  if (!isWhole && hasBuckets && options.stepPacking.value_or(true))
    schedule = std::make_unique<StepPackingSchedule>(std::move(rows), variants,
                                                     packs, options);
  else
    schedule = std::make_unique<PaddedSchedule>(std::move(rows), variants,
                                                packs, options);
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

void shuffle(std::span<uint32_t> order, uint64_t seed, int64_t epoch) {
  uint64_t state = seed;
  state = splitMix(state) + static_cast<uint64_t>(epoch);
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[randomBelow(i, state)]);
}

std::vector<uint32_t> shuffledOrder(int64_t count, uint64_t seed,
                                    int64_t epoch) {
  std::vector<uint32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  shuffle(order, seed, epoch);
  return order;
}

} // namespace qlora
