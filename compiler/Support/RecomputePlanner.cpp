// SPDX-License-Identifier: MIT

// The search for a plan (RecomputePlanner.h has the idea).

#include "compiler/Support/RecomputePlanner.h"

#include <algorithm>
#include <optional>

#include "compiler/Support/RecomputeLayout.h"

using namespace qlora;

using Choice = RecomputeLayout::Choice;

namespace {

/// Blocks per segment of the fixed policies.
constexpr int64_t kSegments[] = {1, 2, 3, 4, 6, 8};

class Search {
public:
  explicit Search(const RecomputeProblem &problem)
      : problem(problem), layout(problem) {}

  Choice keepAll() const;
  Choice keepSegments(int64_t blocksPerSegment, bool isNested) const;
  /// Drops values until the peak is within the budget or nothing helps.
  void lower(Choice &choice, uint64_t budget);
  /// Keeps values again as long as the budget allows (or the peak, where that
  /// is over it).
  void relax(Choice &choice, uint64_t budget);
  /// The best of the fixed policies, lowered and relaxed.
  RecomputePlan bestSegments(uint64_t budget, bool isNested);
  const RecomputeLayout &evaluate(const Choice &choice) {
    layout.evaluate(choice);
    return layout;
  }

private:
  /// Seconds per byte that dropping an op's values costs; nullopt where it
  /// frees nothing at the peak.
  std::optional<double> price(uint32_t head, const Choice &choice);
  std::optional<uint32_t> cheapest(const Choice &choice,
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

std::vector<uint32_t> qlora::zonesOf(const RecomputeProblem &problem) {
  std::vector<uint32_t> zones;
  uint32_t zone = 0;
  int64_t block = -1;
  for (const RecomputeOp &op : problem.ops) {
    if (op.isBackward && op.block >= 0 && op.block != block) {
      block = op.block;
      ++zone;
    }
    zones.push_back(zone);
  }
  return zones;
}

/// What the backward reads is kept. The rest is not: it is only there for a
/// moment, and if a recomputed op needs it, it is recomputed too.
Choice Search::keepAll() const {
  Choice choice(problem.ops.size(), Recompute::Once);
  for (uint32_t op = 0; op < layout.forwardOps(); ++op)
    for (uint32_t value : problem.ops[op].outputs)
      if (layout.isRead(value))
        choice[layout.headOf(op)] = Recompute::Never;
  return choice;
}

Choice Search::keepSegments(int64_t blocksPerSegment, bool isNested) const {
  auto blockOf = [&](uint32_t op) { return problem.ops[op].block; };
  auto segmentOf = [&](uint32_t op) {
    return blockOf(op) < 0 ? -1 : blockOf(op) / blocksPerSegment;
  };
  Choice choice(problem.ops.size(),
                isNested ? Recompute::PerZone : Recompute::Once);
  for (uint32_t op = 0; op < layout.forwardOps(); ++op) {
    if (segmentOf(op) < 0)
      choice[layout.headOf(op)] = Recompute::Never;
    for (uint32_t value : problem.ops[op].inputs) {
      uint32_t maker = layout.makerOf(value);
      Recompute &ofMaker = choice[layout.headOf(maker)];
      if (segmentOf(maker) != segmentOf(op))
        ofMaker = Recompute::Never;
      else if (blockOf(maker) != blockOf(op) && ofMaker != Recompute::Never)
        ofMaker = Recompute::Once;
    }
  }
  return choice;
}

std::optional<double> Search::price(uint32_t head, const Choice &choice) {
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
      if (choice[layout.headOf(maker)] != Recompute::Never)
        stack.push_back(maker);
      else if (!layout.livesAtPeak(value))
        freed -= problem.values[layout.rootOf(value)].bytes;
    }
  }
  if (freed <= 0)
    return std::nullopt;
  return seconds / freed;
}

std::optional<uint32_t> Search::cheapest(const Choice &choice,
                                         const std::vector<bool> &useless) {
  std::optional<uint32_t> best;
  double bestPrice = 0;
  for (uint32_t op = 0; op < layout.forwardOps(); ++op) {
    if (layout.headOf(op) != op || choice[op] != Recompute::Never || useless[op])
      continue;
    std::optional<double> candidate = price(op, choice);
    if (candidate && (!best || *candidate < bestPrice))
      best = op, bestPrice = *candidate;
  }
  return best;
}

void Search::lower(Choice &choice, uint64_t budget) {
  layout.evaluate(choice);
  std::vector<bool> useless(problem.ops.size(), false);
  bool isChanged = false;
  while (layout.peakBytes() > budget) {
    std::optional<uint32_t> op = cheapest(choice, useless);
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
    choice[*op] = Recompute::Once;
    layout.evaluate(choice);
    if (layout.peakBytes() < peak ||
        (layout.peakBytes() == peak && layout.momentsAtPeak() < moments)) {
      isChanged = true;
      continue;
    }
    choice[*op] = Recompute::Never;
    useless[*op] = true;
    layout.evaluate(choice);
  }
}

void Search::relax(Choice &choice, uint64_t budget) {
  layout.evaluate(choice);
  budget = std::max(budget, layout.peakBytes());
  std::vector<std::pair<double, uint32_t>> dropped;
  for (uint32_t op = 0; op < layout.forwardOps(); ++op)
    if (layout.headOf(op) == op && layout.isRecomputed(op))
      dropped.push_back(
          {-problem.ops[op].seconds * layout.cloneCount(op), op});
  std::sort(dropped.begin(), dropped.end());
  double seconds = layout.seconds();
  for (auto [negative, op] : dropped)
    for (Recompute when : {Recompute::Never, Recompute::Once}) {
      Recompute was = choice[op];
      if (was <= when)
        break;
      choice[op] = when;
      layout.evaluate(choice);
      if (layout.peakBytes() <= budget && layout.seconds() < seconds)
        seconds = layout.seconds();
      else
        choice[op] = was;
    }
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

RecomputePlan Search::bestSegments(uint64_t budget, bool isNested) {
  Choice best;
  RecomputePlan bestPlan;
  for (int64_t blocks : kSegments) {
    Choice choice = keepSegments(blocks, isNested);
    RecomputePlan plan = evaluate(choice).plan();
    if (best.empty() || isBetter(plan, bestPlan, budget))
      best = std::move(choice), bestPlan = std::move(plan);
  }
  lower(best, budget);
  relax(best, budget);
  return evaluate(best).plan();
}

RecomputePlan
qlora::planWithoutRecompute(const RecomputeProblem &problem) {
  Search search(problem);
  return search.evaluate(search.keepAll()).plan();
}

RecomputePlan qlora::planSegments(const RecomputeProblem &problem,
                                  int64_t blocksPerSegment) {
  Search search(problem);
  return search.evaluate(search.keepSegments(blocksPerSegment, false)).plan();
}

RecomputePlan qlora::planNested(const RecomputeProblem &problem,
                                int64_t blocksPerSegment) {
  Search search(problem);
  return search.evaluate(search.keepSegments(blocksPerSegment, true)).plan();
}

RecomputePlan qlora::planRecompute(const RecomputeProblem &problem,
                                   uint64_t budget) {
  Search search(problem);
  Choice greedy = search.keepAll();
  RecomputePlan best = search.evaluate(greedy).plan();
  if (best.peakBytes <= budget)
    return best;
  search.lower(greedy, budget);
  search.relax(greedy, budget);
  best = search.evaluate(greedy).plan();
  for (bool isNested : {false, true}) {
    if (isNested && best.peakBytes <= budget)
      break;
    RecomputePlan plan = search.bestSegments(budget, isNested);
    if (isBetter(plan, best, budget))
      best = std::move(plan);
  }
  return best;
}

RecomputePlan qlora::planBlocks(const RecomputeProblem &problem,
                                uint64_t budget) {
  RecomputePlan plan = planSegments(problem, 1);
  if (!budget || plan.peakBytes <= budget)
    return plan;
  return planRecompute(problem, budget);
}
