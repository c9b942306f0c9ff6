// SPDX-License-Identifier: MIT

// A training step laid out for one choice of what is kept: where each op is
// computed again, and how many bytes are alive at each moment. The arithmetic
// below RecomputePlanner.h, done a thousand times per plan.

#ifndef QLORA_COMPILER_SUPPORT_RECOMPUTELAYOUT_H
#define QLORA_COMPILER_SUPPORT_RECOMPUTELAYOUT_H

#include "compiler/Support/RecomputePlanner.h"

namespace qlora {

class RecomputeLayout {
public:
  explicit RecomputeLayout(const RecomputeProblem &problem);

  /// What is kept; one entry per op, of which only those of `head`s count.
  /// An op whose outputs nothing asks for is never computed again.
  using Keep = std::vector<bool>;

  /// Lays the step out; all that follows speaks of the last call.
  void evaluate(const Keep &keep);

  uint64_t peakBytes() const { return peak; }
  /// Moments with that many bytes alive.
  int64_t momentsAtPeak() const { return peakCount; }
  double seconds() const { return extraSeconds; }
  RecomputePlan plan() const { return {before, peak, extraSeconds}; }
  bool isRecomputed(uint32_t op) const { return before[op] >= 0; }
  /// True where the memory of a forward value is alive at the peak.
  bool livesAtPeak(uint32_t value) const;
  /// True where it is alive there only because the backward reads it later.
  bool waitsAtPeak(uint32_t value) const;

  // Of the problem itself.
  uint32_t forwardOps() const { return forwardCount; }
  /// The op that decides for this one: a view goes with its source's maker.
  uint32_t headOf(uint32_t op) const { return heads[op]; }
  /// The op that makes a value.
  uint32_t makerOf(uint32_t value) const { return makers[value]; }
  /// True where the backward reads it (not where recomputing would).
  bool isRead(uint32_t value) const { return firstReader[value] != kNever; }
  /// The value whose memory it is part of.
  uint32_t rootOf(uint32_t value) const { return roots[value]; }

private:
  static constexpr int64_t kNever = INT64_MAX;

  void placeRecomputed(const Keep &keep);
  void schedule();
  void findLives();
  void countBytes();
  /// The copy of a value that an op reads: that of the forward, or the
  /// recomputed one, which is numbered after all of the forward's.
  uint32_t instance(uint32_t value, bool isForward) const;
  uint32_t rootInstance(uint32_t value, bool isForward) const;

  struct Moment {
    uint32_t op;
    bool isForward;  ///< reads the forward's values
    bool isRepeated; ///< writes recomputed ones
  };

  const RecomputeProblem &problem;
  uint32_t forwardCount = 0;
  std::vector<uint32_t> heads, makers, roots;
  std::vector<int64_t> firstReader; ///< op of the backward, per value

  std::vector<int64_t> before, need;
  std::vector<Moment> moments;
  /// Per instance: first and last moment of its memory.
  std::vector<int64_t> firstMoment, lastMoment;
  /// Per value: last read by the forward, first by anything later.
  std::vector<int64_t> lastForward, firstBackward;
  std::vector<bool> held;
  uint64_t peak = 0;
  int64_t peakMoment = 0, peakCount = 0;
  double extraSeconds = 0;
};

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_RECOMPUTELAYOUT_H
