// SPDX-License-Identifier: MIT

// The moves of the planner (RecomputePlanner.h): choices that it starts from,
// and what makes one lower or faster.

#ifndef QLORA_COMPILER_SUPPORT_RECOMPUTESEARCH_H
#define QLORA_COMPILER_SUPPORT_RECOMPUTESEARCH_H

#include <initializer_list>
#include <optional>

#include "compiler/Support/RecomputeLayout.h"

namespace qlora {

class RecomputeSearch {
public:
  using Choice = RecomputeLayout::Choice;

  /// `problem` has to outlive the search.
  explicit RecomputeSearch(const RecomputeProblem &problem);

  Choice keepAll() const;
  Choice keepSegments(int64_t blocksPerSegment, bool isNested) const;

  /// Drops values, the cheapest per byte first, until the peak is within the
  /// budget or nothing helps.
  void lower(Choice &choice, uint64_t budget);
  /// Keeps values again as long as the budget allows (or the peak, where that
  /// is over it), the most expensive first.
  void relax(Choice &choice, uint64_t budget);
  /// Turns choices around, and then those that this asks for, while less is
  /// over the budget. No op is computed again more often than `most` says,
  /// if it was not before.
  void descend(Choice &choice, uint64_t budget, Recompute most);
  /// Exchanges what is kept within the budget while that saves time.
  void improve(Choice &choice, uint64_t budget);

  /// Bounds what descend() and improve() do from here on, all together.
  void limitWork();
  /// No plan is lower.
  uint64_t leastPeak() const { return layout.leastPeak(); }
  RecomputePlan planOf(const Choice &choice) {
    evaluate(choice);
    return layout.plan();
  }

private:
  /// A choice to be made, whatever it takes.
  struct Move {
    uint32_t head;
    Recompute when;
  };

  void evaluate(const Choice &choice, uint64_t budget = UINT64_MAX) {
    layout.evaluate(choice, budget);
    work += problem.ops.size();
  }
  /// Changes single choices while less is over the budget; what is left.
  uint64_t settle(Choice &choice, uint64_t budget);
  /// Does `moves`, and with all others what that asks for and what it allows;
  /// takes it back and returns false where that is not faster.
  bool exchange(Choice &choice, std::initializer_list<Move> moves,
                uint64_t budget);
  bool exchangeOne(Choice &choice, uint64_t budget);
  bool exchangeTwo(Choice &choice, uint64_t budget);
  /// Seconds per byte that dropping an op's values costs; nullopt where it
  /// frees nothing at the peak.
  std::optional<double> price(uint32_t head, const Choice &choice);
  std::optional<uint32_t> cheapest(const Choice &choice,
                                   const std::vector<bool> &useless);

  const RecomputeProblem &problem;
  RecomputeLayout layout;
  /// Forward ops by the op that decides for them.
  std::vector<std::vector<uint32_t>> groups;
  std::vector<uint32_t> heads; ///< those that decide
  /// Per op, true while what follows from its own choice is settled.
  std::vector<bool> pinned;
  /// What lower() counts of a value: all its bytes, or only as many as are
  /// over the budget. Each is better at times.
  bool pricesWhole = true;
  uint64_t target = 0; ///< bytes below which nothing counts in a price
  Recompute mostTimes = Recompute::PerZone;
  /// Marks of the walk in price(), by its number.
  std::vector<uint64_t> seen;
  uint64_t walk = 0;
  uint64_t work = 0;  ///< ops laid out so far
  uint64_t limit = 0; ///< of work
};

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_RECOMPUTESEARCH_H
