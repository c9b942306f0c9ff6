// SPDX-License-Identifier: MIT

// Implements the moves of the planner (RecomputeSearch.h).

#include "compiler/Support/RecomputeSearch.h"

#include <algorithm>

using namespace qlora;

/// Maximum number of ops that descend() and improve() lay out. In contrast to a
/// time limit, it gives the same plan on every machine.
static constexpr uint64_t kMostWork = 3'000'000;

static constexpr Recompute kAllTimes[] = {Recompute::Never, Recompute::Once,
                                          Recompute::PerZone};

RecomputeSearch::RecomputeSearch(const RecomputeProblem &problem)
    : problem(problem), layout(problem), groups(problem.ops.size()),
      pinned(problem.ops.size(), false), seen(problem.ops.size(), 0) {
  for (uint32_t op = 0; op < layout.forwardOps(); ++op) {
    groups[layout.headOf(op)].push_back(op);
    if (layout.headOf(op) == op)
      heads.push_back(op);
  }
}

/// Keeps every value that the backward reads, so nothing is recomputed yet. Ops
/// whose values only the forward reads get Once. They are recomputed if the
/// search later recomputes a reader of these values.
RecomputeSearch::Choice RecomputeSearch::keepAll() const {
  Choice choice(problem.ops.size(), Recompute::Once);
  for (uint32_t op = 0; op < layout.forwardOps(); ++op)
    for (uint32_t value : problem.ops[op].outputs)
      if (layout.isRead(value))
        choice[layout.headOf(op)] = Recompute::Never;
  return choice;
}

RecomputeSearch::Choice RecomputeSearch::keepSegments(int64_t blocksPerSegment,
                                                      bool isNested) const {
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

std::optional<double> RecomputeSearch::price(uint32_t head,
                                             const Choice &choice) {
  int64_t freed = 0;
  for (uint32_t op : groups[head])
    for (uint32_t value : problem.ops[op].outputs)
      if (layout.rootOf(value) == value && layout.waitsAtPeak(value))
        freed += problem.values[value].bytes;
  if (freed <= 0)
    return std::nullopt;
  // Follow the chain of inputs: ops that must be recomputed too cost time, and
  // values that must be kept longer for them cost memory.
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
      if (seen[maker] == walk || layout.isRecomputed(maker) ||
          layout.isBroughtBack(value))
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
  return seconds / std::min<uint64_t>(freed, layout.peakBytes() - target);
}

std::optional<uint32_t>
RecomputeSearch::cheapest(const Choice &choice,
                          const std::vector<bool> &useless) {
  std::optional<uint32_t> best;
  double bestPrice = 0;
  for (uint32_t op : heads) {
    if (choice[op] != Recompute::Never || useless[op])
      continue;
    std::optional<double> candidate = price(op, choice);
    if (candidate && (!best || *candidate < bestPrice))
      best = op, bestPrice = *candidate;
  }
  return best;
}

void RecomputeSearch::lower(Choice &choice, uint64_t budget) {
  evaluate(choice);
  std::vector<bool> useless = pinned;
  target = pricesWhole ? 0 : budget;
  bool isChanged = false;
  while (layout.peakBytes() > budget) {
    std::optional<uint32_t> op = cheapest(choice, useless);
    if (!op) {
      // A drop that did not help before may help now.
      if (!isChanged)
        return;
      isChanged = false;
      useless = pinned;
      continue;
    }
    uint64_t peak = layout.peakBytes();
    int64_t moments = layout.momentsAtPeak();
    choice[*op] = Recompute::Once;
    evaluate(choice);
    if (layout.peakBytes() < peak ||
        (layout.peakBytes() == peak && layout.momentsAtPeak() < moments)) {
      isChanged = true;
      continue;
    }
    choice[*op] = Recompute::Never;
    useless[*op] = true;
    evaluate(choice);
  }
}

void RecomputeSearch::relax(Choice &choice, uint64_t budget) {
  evaluate(choice);
  budget = std::max(budget, layout.peakBytes());
  std::vector<std::pair<double, uint32_t>> dropped;
  for (uint32_t op : heads)
    if (!pinned[op] && layout.isRecomputed(op))
      dropped.push_back({-problem.ops[op].seconds * layout.cloneCount(op), op});
  std::sort(dropped.begin(), dropped.end());
  double seconds = layout.seconds();
  for (auto [negative, op] : dropped)
    for (Recompute when : {Recompute::Never, Recompute::Once}) {
      Recompute was = choice[op];
      if (was <= when)
        break;
      choice[op] = when;
      work += problem.ops.size();
      if (layout.evaluateWithin(choice, budget) && layout.seconds() < seconds)
        seconds = layout.seconds();
      else
        choice[op] = was;
    }
  evaluate(choice);
}

uint64_t RecomputeSearch::settle(Choice &choice, uint64_t budget) {
  evaluate(choice, budget);
  uint64_t excess = layout.excess();
  for (bool isLower = true; isLower && excess;) {
    isLower = false;
    for (uint32_t head : heads)
      for (Recompute when : kAllTimes) {
        Recompute was = choice[head];
        if (was == when || when > mostTimes || pinned[head])
          continue;
        if (work >= limit)
          return excess;
        choice[head] = when;
        evaluate(choice, budget);
        if (layout.excess() < excess) {
          excess = layout.excess();
          isLower = true;
        } else {
          choice[head] = was;
        }
      }
  }
  return excess;
}

void RecomputeSearch::descend(Choice &choice, uint64_t budget, Recompute most) {
  mostTimes = most;
  uint64_t excess = settle(choice, budget);
  for (bool isLower = true; isLower;) {
    isLower = false;
    for (uint32_t head : heads)
      for (Recompute when : kAllTimes) {
        if (!excess || work >= limit)
          return;
        if (choice[head] == when || when > most)
          continue;
        Choice trial = choice;
        trial[head] = when;
        pinned[head] = true;
        uint64_t reached = settle(trial, budget);
        pinned[head] = false;
        if (reached >= excess)
          continue;
        choice = std::move(trial);
        excess = reached;
        isLower = true;
      }
  }
}

void RecomputeSearch::limitWork() { limit = work + kMostWork; }

bool RecomputeSearch::exchange(Choice &choice,
                               std::initializer_list<Move> moves,
                               uint64_t budget) {
  evaluate(choice);
  double seconds = layout.seconds();
  Choice trial = choice;
  for (auto [head, when] : moves) {
    trial[head] = when;
    pinned[head] = true;
  }
  lower(trial, budget);
  if (layout.peakBytes() <= budget || !settle(trial, budget))
    relax(trial, budget);
  for (auto [head, when] : moves)
    pinned[head] = false;
  if (layout.peakBytes() > budget || layout.seconds() >= seconds)
    return false;
  choice = std::move(trial);
  return true;
}

bool RecomputeSearch::exchangeOne(Choice &choice, uint64_t budget) {
  bool isFaster = false;
  for (uint32_t head : heads)
    for (Recompute when : kAllTimes)
      for (bool prices : {false, true}) {
        pricesWhole = prices;
        if (choice[head] != when && work < limit)
          isFaster |= exchange(choice, {{head, when}}, budget);
      }
  return isFaster;
}

/// Keeps the values of an expensive op and drops those of a cheaper op, for
/// cases in which no single change helps.
bool RecomputeSearch::exchangeTwo(Choice &choice, uint64_t budget) {
  pricesWhole = false;
  for (uint32_t kept : heads)
    for (uint32_t dropped : heads) {
      if (choice[kept] == Recompute::Never ||
          choice[dropped] != Recompute::Never ||
          problem.ops[dropped].seconds >= problem.ops[kept].seconds)
        continue;
      if (work >= limit)
        return false;
      if (exchange(choice,
                   {{kept, Recompute::Never}, {dropped, Recompute::Once}},
                   budget))
        return true;
    }
  return false;
}

void RecomputeSearch::improve(Choice &choice, uint64_t budget) {
  mostTimes = Recompute::PerZone;
  while (work < limit &&
         (exchangeOne(choice, budget) || exchangeTwo(choice, budget)))
    ;
  pricesWhole = true;
}
