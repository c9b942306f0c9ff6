// SPDX-License-Identifier: MIT

// The moves of the planner (RecomputePlanner.h): initial choices, and changes
// that lower the peak or save time.

#ifndef QLORA_COMPILER_SUPPORT_RECOMPUTESEARCH_H
#define QLORA_COMPILER_SUPPORT_RECOMPUTESEARCH_H

#include <initializer_list>
#include <optional>

#include "compiler/Support/RecomputeLayout.h"

namespace qlora {

class RecomputeSearch {
public:
  using Choice = RecomputeLayout::Choice;

  /// `problem` must outlive the search.
  explicit RecomputeSearch(const RecomputeProblem &problem);

  Choice keepAll() const;
  Choice keepSegments(int64_t blocksPerSegment, bool isNested) const;

  /// Drops values, the cheapest per byte first, until the peak is within the
  /// budget or no drop helps.
  void lower(Choice &choice, uint64_t budget);
  /// Keeps values again, the most expensive first, while the peak stays within
  /// the budget. A peak that is over the budget already must not grow.
  void relax(Choice &choice, uint64_t budget);
  /// Changes single choices, each with the choices that it requires, while that
  /// reduces the bytes over the budget. No choice is changed to recompute more
  /// often than `most`.
  void descend(Choice &choice, uint64_t budget, Recompute most);
  /// Exchanges kept and dropped values within the budget while that saves time.
  void improve(Choice &choice, uint64_t budget);

  /// Limits the total work of descend() and improve() from here on.
  void limitWork();
  /// Returns a lower bound of the peak of any plan.
  uint64_t leastPeak() const { return layout.leastPeak(); }
  RecomputePlan planOf(const Choice &choice) {
    evaluate(choice);
    return layout.plan();
  }

private:
  /// A change of one op's choice.
  struct Move {
    uint32_t head;
    Recompute when;
  };

  void evaluate(const Choice &choice, uint64_t budget = UINT64_MAX) {
    layout.evaluate(choice, budget);
    work += problem.ops.size();
  }
  /// Changes single choices while that reduces the bytes over the budget,
  /// summed over all moments. Returns the remaining sum.
  uint64_t settle(Choice &choice, uint64_t budget);
  /// Makes `moves`, then adapts the other choices. Leaves `choice` unchanged
  /// and returns false if the result is not faster or exceeds the budget.
  bool exchange(Choice &choice, std::initializer_list<Move> moves,
                uint64_t budget);
  bool exchangeOne(Choice &choice, uint64_t budget);
  bool exchangeTwo(Choice &choice, uint64_t budget);
  /// Returns the seconds per byte of dropping an op's values, or nullopt if it
  /// frees nothing at the peak.
  std::optional<double> price(uint32_t head, const Choice &choice);
  std::optional<uint32_t> cheapest(const Choice &choice,
                                   const std::vector<bool> &useless);

  const RecomputeProblem &problem;
  RecomputeLayout layout;
  /// Per head (RecomputeLayout::headOf): the forward ops with its choice.
  std::vector<std::vector<uint32_t>> groups;
  std::vector<uint32_t> heads; ///< ops that are their own head
  /// Per op: true while its choice is fixed, and the others adapt to it.
  std::vector<bool> pinned;
  /// If true, lower() prices a value by all bytes that dropping it frees, else
  /// by at most the bytes over the budget. Each variant is sometimes better.
  bool pricesWhole = true;
  /// Peak to reach, in bytes. price() ignores freed bytes below this peak.
  uint64_t target = 0;
  Recompute mostTimes = Recompute::PerZone;
  /// Per op: the last call of price() that visited it.
  std::vector<uint64_t> seen;
  uint64_t walk = 0;  ///< calls of price() so far
  uint64_t work = 0;  ///< ops laid out so far
  uint64_t limit = 0; ///< bound on `work`
};

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_RECOMPUTESEARCH_H
