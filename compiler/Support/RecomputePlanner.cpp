// SPDX-License-Identifier: MIT

// Searches for a plan. RecomputePlanner.h describes the method.

#include "compiler/Support/RecomputePlanner.h"

#include "compiler/Support/RecomputeSearch.h"

using namespace qlora;

using Choice = RecomputeSearch::Choice;

/// Blocks per segment of the fixed policies.
static constexpr int64_t kSegments[] = {1, 2, 3, 4, 6, 8};

uint32_t ZoneCounter::enter(bool isBackward, int64_t block) {
  if (isBackward && block >= 0 && block != last) {
    last = block;
    ++zone;
  }
  return zone;
}

std::vector<uint32_t> qlora::zonesOf(const RecomputeProblem &problem) {
  std::vector<uint32_t> zones;
  ZoneCounter counter;
  for (const RecomputeOp &op : problem.ops)
    zones.push_back(counter.enter(op.isBackward, op.block));
  return zones;
}

/// True if `a` is better than `b`. A plan within the budget is better than one
/// above the budget. If both are within the budget, the faster one is better,
/// else the one with the lower peak.
static bool isBetter(const RecomputePlan &a, const RecomputePlan &b,
                     uint64_t budget) {
  bool fits = a.peakBytes <= budget, otherFits = b.peakBytes <= budget;
  if (fits != otherFits)
    return fits;
  if (fits && a.seconds != b.seconds)
    return a.seconds < b.seconds;
  return a.peakBytes < b.peakBytes;
}

/// Returns the best choice of the fixed policies, with two levels if isNested.
static Choice bestSegments(RecomputeSearch &search, uint64_t budget,
                           bool isNested) {
  Choice best;
  RecomputePlan bestPlan;
  for (int64_t blocks : kSegments) {
    Choice choice = search.keepSegments(blocks, isNested);
    RecomputePlan plan = search.planOf(choice);
    if (best.empty() || isBetter(plan, bestPlan, budget))
      best = std::move(choice), bestPlan = std::move(plan);
  }
  return best;
}

RecomputePlan qlora::planWithoutRecompute(const RecomputeProblem &problem) {
  RecomputeSearch search(problem);
  return search.planOf(search.keepAll());
}

RecomputePlan qlora::planSegments(const RecomputeProblem &problem,
                                  int64_t blocksPerSegment, bool isNested) {
  RecomputeSearch search(problem);
  return search.planOf(search.keepSegments(blocksPerSegment, isNested));
}

/// Returns the initial choices of the search, each changed to fit the budget if
/// possible: everything kept, and the best fixed policy. If neither fits, adds
/// the best policy with two levels.
static std::vector<Choice> firstChoices(RecomputeSearch &search,
                                        uint64_t budget) {
  std::vector<Choice> choices;
  bool fits = false;
  auto add = [&](Choice choice) {
    search.lower(choice, budget);
    search.relax(choice, budget);
    fits |= search.planOf(choice).peakBytes <= budget;
    choices.push_back(std::move(choice));
  };
  add(search.keepAll());
  add(bestSegments(search, budget, false));
  if (!fits)
    add(bestSegments(search, budget, true));
  return choices;
}

RecomputePlan qlora::planRecompute(const RecomputeProblem &problem,
                                   uint64_t budget) {
  RecomputeSearch search(problem);
  Choice best = search.keepAll();
  RecomputePlan bestPlan = search.planOf(best);
  auto consider = [&](const Choice &choice) {
    RecomputePlan plan = search.planOf(choice);
    if (isBetter(plan, bestPlan, budget))
      best = choice, bestPlan = std::move(plan);
  };
  if (bestPlan.peakBytes <= budget)
    return bestPlan;
  std::vector<Choice> choices = firstChoices(search, budget);
  for (const Choice &choice : choices)
    consider(choice);
  if (budget < search.leastPeak())
    return bestPlan;
  for (Recompute most : {Recompute::Once, Recompute::PerZone}) {
    search.limitWork();
    for (Choice choice : choices)
      if (bestPlan.peakBytes > budget) {
        search.descend(choice, budget, most);
        consider(choice);
      }
  }
  if (bestPlan.peakBytes > budget)
    return bestPlan;
  search.limitWork();
  search.improve(best, budget);
  return search.planOf(best);
}

RecomputePlan qlora::planBlocks(const RecomputeProblem &problem,
                                uint64_t budget) {
  RecomputePlan plan = planSegments(problem, 1);
  if (!budget || plan.peakBytes <= budget)
    return plan;
  return planRecompute(problem, budget);
}
