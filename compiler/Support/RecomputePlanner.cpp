// SPDX-License-Identifier: MIT

// The search for a plan (RecomputePlanner.h has the idea).

#include "compiler/Support/RecomputePlanner.h"

#include <algorithm>
#include <optional>

#include "compiler/Support/RecomputeLayout.h"

using namespace qlora;

using Keep = RecomputeLayout::Keep;

namespace {

/// Blocks per segment of the fixed policies.
constexpr int64_t kSegments[] = {1, 2, 3, 4, 6, 8};

class Search {
public:
  explicit Search(const RecomputeProblem &problem)
      : problem(problem), layout(problem) {}

  Keep keepAll() const;
  Keep keepSegments(int64_t blocksPerSegment) const;
  /// Drops values until the peak is within the budget or nothing helps.
  void lower(Keep &keep, uint64_t budget);
  /// Keeps values again as long as the budget allows (or the peak, where that
  /// is over it).
  void relax(Keep &keep, uint64_t budget);
  const RecomputeLayout &evaluate(const Keep &keep) {
    layout.evaluate(keep);
    return layout;
  }

private:
  /// Seconds per byte that dropping an op's values costs; nullopt where it
  /// frees nothing at the peak.
  std::optional<double> price(uint32_t head, const Keep &keep);
  std::optional<uint32_t> cheapest(const Keep &keep,
                                   const std::vector<bool> &useless);

  const RecomputeProblem &problem;
  RecomputeLayout layout;
  /// Forward ops by the op that decides for them.
  std::vector<std::vector<uint32_t>> groups = [this] {
    std::vector<std::vector<uint32_t>> groups(problem.ops.size());
    for (uint32_t op = 0; op < layout.forwardOps(); ++op)
      groups[layout.headOf(op)].push_back(op);
    return groups;
  }();
  /// Marks of the walk in price(), by its number.
  std::vector<uint64_t> seen = std::vector<uint64_t>(problem.ops.size(), 0);
  uint64_t walk = 0;
};

} // namespace

/// What the backward reads is kept. The rest is not: it is only there for a
/// moment, and if a recomputed op needs it, it is recomputed too.
Keep Search::keepAll() const {
  Keep keep(problem.ops.size(), false);
  for (uint32_t op = 0; op < layout.forwardOps(); ++op)
    for (uint32_t value : problem.ops[op].outputs)
      if (layout.isRead(value))
        keep[layout.headOf(op)] = true;
  return keep;
}

Keep Search::keepSegments(int64_t blocksPerSegment) const {
  auto segmentOf = [&](uint32_t op) {
    int64_t block = problem.ops[op].block;
    return block < 0 ? -1 : block / blocksPerSegment;
  };
  Keep keep(problem.ops.size(), false);
  for (uint32_t op = 0; op < layout.forwardOps(); ++op) {
    if (segmentOf(op) < 0)
      keep[layout.headOf(op)] = true;
    for (uint32_t value : problem.ops[op].inputs) {
      uint32_t maker = layout.makerOf(value);
      if (segmentOf(maker) != segmentOf(op))
        keep[layout.headOf(maker)] = true;
    }
  }
  return keep;
}

std::optional<double> Search::price(uint32_t head, const Keep &keep) {
  int64_t freed = 0;
  for (uint32_t op : groups[head])
    for (uint32_t value : problem.ops[op].outputs)
      if (layout.rootOf(value) == value && layout.waitsAtPeak(value))
        freed += problem.values[value].bytes;
  if (freed <= 0)
    return std::nullopt;
  // The chain: what has to be computed again that is not already, and what
  // has to be kept longer for it.
  double seconds = 0;
  ++walk;
  std::vector<uint32_t> stack = groups[head];
  for (uint32_t op : stack)
    seen[op] = walk;
  while (!stack.empty()) {
    uint32_t op = stack.back();
    stack.pop_back();
    seconds += problem.ops[op].seconds;
    for (uint32_t value : problem.ops[op].inputs) {
      uint32_t maker = layout.makerOf(value);
      if (seen[maker] == walk || layout.isRecomputed(maker))
        continue;
      seen[maker] = walk;
      if (!keep[layout.headOf(maker)])
        stack.push_back(maker);
      else if (!layout.livesAtPeak(value))
        freed -= problem.values[layout.rootOf(value)].bytes;
    }
  }
  if (freed <= 0)
    return std::nullopt;
  return seconds / freed;
}

std::optional<uint32_t> Search::cheapest(const Keep &keep,
                                         const std::vector<bool> &useless) {
  std::optional<uint32_t> best;
  double bestPrice = 0;
  for (uint32_t op = 0; op < layout.forwardOps(); ++op) {
    if (layout.headOf(op) != op || !keep[op] || useless[op])
      continue;
    std::optional<double> candidate = price(op, keep);
    if (candidate && (!best || *candidate < bestPrice))
      best = op, bestPrice = *candidate;
  }
  return best;
}

void Search::lower(Keep &keep, uint64_t budget) {
  layout.evaluate(keep);
  std::vector<bool> useless(problem.ops.size(), false);
  bool isChanged = false;
  while (layout.peakBytes() > budget) {
    std::optional<uint32_t> op = cheapest(keep, useless);
    if (!op) {
      // What did not help before may help now.
      if (!isChanged)
        return;
      isChanged = false;
      useless.assign(problem.ops.size(), false);
      continue;
    }
    uint64_t peak = layout.peakBytes();
    int64_t moments = layout.momentsAtPeak();
    keep[*op] = false;
    layout.evaluate(keep);
    if (layout.peakBytes() < peak ||
        (layout.peakBytes() == peak && layout.momentsAtPeak() < moments)) {
      isChanged = true;
      continue;
    }
    keep[*op] = true;
    useless[*op] = true;
    layout.evaluate(keep);
  }
}

void Search::relax(Keep &keep, uint64_t budget) {
  layout.evaluate(keep);
  budget = std::max(budget, layout.peakBytes());
  std::vector<std::pair<double, uint32_t>> dropped;
  for (uint32_t op = 0; op < layout.forwardOps(); ++op)
    if (layout.headOf(op) == op && layout.isRecomputed(op))
      dropped.push_back({-problem.ops[op].seconds, op});
  std::sort(dropped.begin(), dropped.end());
  double seconds = layout.seconds();
  for (auto [negative, op] : dropped) {
    keep[op] = true;
    layout.evaluate(keep);
    if (layout.peakBytes() <= budget && layout.seconds() < seconds)
      seconds = layout.seconds();
    else
      keep[op] = false;
  }
}

RecomputePlan
qlora::planWithoutRecompute(const RecomputeProblem &problem) {
  Search search(problem);
  return search.evaluate(search.keepAll()).plan();
}

RecomputePlan qlora::planSegments(const RecomputeProblem &problem,
                                  int64_t blocksPerSegment) {
  Search search(problem);
  return search.evaluate(search.keepSegments(blocksPerSegment)).plan();
}

/// Within the budget before over it; then the faster one, or among those over
/// it the lower one.
static bool isBetter(const RecomputePlan &a, const RecomputePlan &b,
                     uint64_t budget) {
  bool fits = a.peakBytes <= budget, otherFits = b.peakBytes <= budget;
  if (fits != otherFits)
    return fits;
  if (fits && a.seconds != b.seconds)
    return a.seconds < b.seconds;
  return a.peakBytes < b.peakBytes;
}

RecomputePlan qlora::planRecompute(const RecomputeProblem &problem,
                                   uint64_t budget) {
  Search search(problem);
  Keep start = search.keepAll();
  RecomputePlan unlimited = search.evaluate(start).plan();
  if (unlimited.peakBytes <= budget)
    return unlimited;
  Keep greedy = start;
  search.lower(greedy, budget);
  search.relax(greedy, budget);
  RecomputePlan best = search.evaluate(greedy).plan();

  Keep segments;
  RecomputePlan bestSegments;
  for (int64_t blocks : kSegments) {
    Keep keep = search.keepSegments(blocks);
    RecomputePlan plan = search.evaluate(keep).plan();
    if (segments.empty() || isBetter(plan, bestSegments, budget))
      segments = std::move(keep), bestSegments = std::move(plan);
  }
  search.lower(segments, budget);
  search.relax(segments, budget);
  bestSegments = search.evaluate(segments).plan();
  return isBetter(bestSegments, best, budget) ? bestSegments : best;
}

RecomputePlan qlora::planBlocks(const RecomputeProblem &problem,
                                uint64_t budget) {
  RecomputePlan plan = planSegments(problem, 1);
  if (!budget || plan.peakBytes <= budget)
    return plan;
  return planRecompute(problem, budget);
}
