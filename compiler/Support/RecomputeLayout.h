// SPDX-License-Identifier: MIT

// A training step laid out for one choice of what is kept: where each op is
// computed again, and how many bytes are alive at each moment. The arithmetic
// below RecomputePlanner.h, done a thousand times per plan.

#ifndef QLORA_COMPILER_SUPPORT_RECOMPUTELAYOUT_H
#define QLORA_COMPILER_SUPPORT_RECOMPUTELAYOUT_H

#include "compiler/Support/RecomputePlanner.h"

namespace qlora {

/// When an op is computed again, if the backward needs what it makes.
enum class Recompute : uint8_t {
  Never,  ///< its values are kept
  Once,   ///< before the first reader; the values stay for all others
  PerZone ///< before the first reader in each zone that has one
};

class RecomputeLayout {
public:
  explicit RecomputeLayout(const RecomputeProblem &problem);

  /// One entry per op, of which only those of `head`s count. An op whose
  /// outputs nothing asks for is never computed again.
  using Choice = std::vector<Recompute>;

  /// Lays the step out; all that follows speaks of the last call.
  void evaluate(const Choice &choice, uint64_t budget = UINT64_MAX);
  /// The same, but gives up, and returns false, where the peak is above.
  bool evaluateWithin(const Choice &choice, uint64_t budget);

  uint64_t peakBytes() const { return peak; }
  /// Moments with that many bytes alive.
  int64_t momentsAtPeak() const { return peakCount; }
  /// Bytes over the budget, summed over all moments.
  uint64_t excess() const { return excessBytes; }
  double seconds() const { return extraSeconds; }
  RecomputePlan plan() const;
  /// How often an op is computed again.
  uint32_t cloneCount(uint32_t op) const { return cloneCounts[op]; }
  bool isRecomputed(uint32_t op) const { return cloneCounts[op] > 0; }
  /// True where the memory of a forward value is alive at the peak.
  bool livesAtPeak(uint32_t value) const;
  /// True where it is alive there only because the backward reads it later.
  bool waitsAtPeak(uint32_t value) const;

  // Of the problem itself.
  /// The most bytes that one op reads: no choice has a lower peak.
  uint64_t leastPeak() const;
  uint32_t forwardOps() const { return forwardCount; }
  /// The op that decides for this one: a view goes with its source's maker.
  uint32_t headOf(uint32_t op) const { return heads[op]; }
  /// The op that makes a value.
  uint32_t makerOf(uint32_t value) const { return makers[value]; }
  /// True where the backward reads it (not where recomputing would).
  bool isRead(uint32_t value) const { return isReadByBackward[value]; }
  /// True where an op of the backward brings it back.
  bool isBroughtBack(uint32_t value) const {
    return broughtBy[roots[value]] != kNoOp;
  }
  /// The value whose memory it is part of.
  uint32_t rootOf(uint32_t value) const { return roots[value]; }

private:
  static constexpr uint32_t kNoOp = UINT32_MAX;
  /// An op that makes inputs of another, and the one after which all of these
  /// have been brought back.
  struct Source {
    uint32_t maker;
    uint32_t until; ///< kNoOp: never
  };
  /// Memory that an op touches: of a value, or of a clone of its maker.
  struct Touch {
    uint32_t root;   ///< a value that is no part
    uint32_t maker;  ///< of root
    uint32_t output; ///< root's place among its maker's outputs
  };
  struct OpTouches {
    std::vector<Touch> reads, writes;
    /// Indices of a read and of a write.
    std::vector<std::pair<uint32_t, uint32_t>> ties;
    std::vector<Source> sources;
    /// Its first backward reader, and the first of each zone.
    std::vector<uint32_t> first, firstPerZone;
  };
  struct Clone {
    uint32_t op;
    uint32_t before;        ///< a backward op
    uint32_t firstInstance; ///< of its outputs
    uint32_t next;          ///< the next one before the same op
  };
  /// An op of the step, in its place or as a clone.
  struct Moment {
    uint32_t op;
    uint32_t firstTouched; ///< index of its reads, then its writes
  };

  void describeOps();
  void addSource(OpTouches &op, uint32_t value) const;
  void describeReaders();
  void describeForward();
  Touch touchOf(uint32_t value) const;
  void askFor(uint32_t op, uint32_t reader, const Choice &choice);
  void placeClones(const Choice &choice);
  void addMoment(uint32_t op);
  void findLives();
  void countBytes(uint64_t budget, uint64_t most);
  void handOver(uint32_t moment);

  const RecomputeProblem &problem;
  uint32_t forwardCount = 0;
  std::vector<uint32_t> heads, makers, roots, zones;
  std::vector<uint32_t> broughtBy; ///< per value: an op, or kNoOp
  std::vector<bool> isReadByBackward;
  std::vector<OpTouches> touches;
  std::vector<uint64_t> valueBytes; ///< padded
  uint32_t forwardTouched = 0;      ///< entries of `touched` of the forward
  /// Per value: the first and last moment of the forward that touches it.
  std::vector<int64_t> firstForward, lastForward;

  std::vector<std::vector<uint32_t>> readers; ///< per op, one per clone
  std::vector<Clone> clones; ///< of one op side by side, the latest first
  std::vector<uint32_t> firstClones, cloneCounts;
  std::vector<uint32_t> clonesBefore; ///< first of a list, per op
  std::vector<Moment> moments;   ///< those of the forward are always the same
  std::vector<uint32_t> touched; ///< instances
  /// Per op, where the instances of its latest clone so far begin, or kEnd.
  /// Clones' are numbered after all values.
  std::vector<uint32_t> latest;
  /// Per value, what stands for it so far, or kNoValue.
  std::vector<uint32_t> standIns;
  /// Per instance.
  std::vector<uint64_t> bytes;
  std::vector<int64_t> lastMoment;
  std::vector<uint8_t> held;
  /// Per value: the first moment after the forward that touches it.
  std::vector<int64_t> firstBackward;
  uint64_t peak = 0, excessBytes = 0;
  int64_t peakMoment = 0, peakCount = 0;
  double extraSeconds = 0;
};

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_RECOMPUTELAYOUT_H
