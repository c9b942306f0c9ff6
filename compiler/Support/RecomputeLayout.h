// SPDX-License-Identifier: MIT

// Lays out a training step for one choice of kept values: where each op is
// recomputed, and how many bytes are alive at each moment. The planner
// (RecomputePlanner.h) lays out thousands of choices per plan.
//
// A clone is a recomputation of an op. An instance is the memory of a value, or
// of the copy of it that a clone makes. Instances are numbered: first the
// values, then the outputs of all clones.

#ifndef QLORA_COMPILER_SUPPORT_RECOMPUTELAYOUT_H
#define QLORA_COMPILER_SUPPORT_RECOMPUTELAYOUT_H

#include "compiler/Support/RecomputePlanner.h"

namespace qlora {

/// When an op is recomputed, if the backward needs its results.
enum class Recompute : uint8_t {
  Never,  ///< its values are kept
  Once,   ///< before the first reader; later readers use the same copy
  PerZone ///< in each zone with a reader, before the zone's first reader
};

class RecomputeLayout {
public:
  explicit RecomputeLayout(const RecomputeProblem &problem);

  /// One entry per op; views take the entry of their headOf(). An op whose
  /// outputs are not needed again is never recomputed.
  using Choice = std::vector<Recompute>;

  /// Lays out the step. All queries below refer to the last evaluation.
  void evaluate(const Choice &choice, uint64_t budget = UINT64_MAX);
  /// Lays out the step, but stops and returns false if the peak exceeds
  /// `budget`.
  bool evaluateWithin(const Choice &choice, uint64_t budget);

  uint64_t peakBytes() const { return peak; }
  /// Number of points in time with peakBytes() alive.
  int64_t momentsAtPeak() const { return peakCount; }
  /// Bytes over the budget, summed over all points in time of the step.
  uint64_t excess() const { return excessBytes; }
  double seconds() const { return extraSeconds; }
  RecomputePlan plan() const;
  /// Returns how often an op is recomputed.
  uint32_t cloneCount(uint32_t op) const { return cloneCounts[op]; }
  bool isRecomputed(uint32_t op) const { return cloneCounts[op] > 0; }
  /// True if the memory of a forward value is alive at the peak.
  bool livesAtPeak(uint32_t value) const;
  /// True if the memory of a forward value is alive at the peak only because
  /// the backward reads it later.
  bool waitsAtPeak(uint32_t value) const;

  // Properties of the problem, independent of the choice.
  /// Returns the most bytes that one op reads: no choice has a lower peak.
  uint64_t leastPeak() const;
  uint32_t forwardOps() const { return forwardCount; }
  /// Returns the op whose entry of a Choice applies to `op`: the op itself, or
  /// for a view the op that makes the viewed value.
  uint32_t headOf(uint32_t op) const { return heads[op]; }
  /// Returns the op that makes a value.
  uint32_t makerOf(uint32_t value) const { return makers[value]; }
  /// True if an op of the backward reads the value, not counting clones.
  bool isRead(uint32_t value) const { return isReadByBackward[value]; }
  /// True if a backward op brings the value back from host memory.
  bool isBroughtBack(uint32_t value) const {
    return broughtBy[roots[value]] != kNoOp;
  }
  /// Returns the value whose memory this value is a view of.
  uint32_t rootOf(uint32_t value) const { return roots[value]; }

private:
  static constexpr uint32_t kNoOp = UINT32_MAX;
  /// An op, `maker`, that makes inputs of a reader op. Clones of the reader
  /// that are placed after `until` need no clone of the maker, because all of
  /// these inputs have been brought back from the host.
  struct Source {
    uint32_t maker;
    uint32_t until; ///< kNoOp: an input is never brought back
  };
  /// A value whose memory an op reads or writes.
  struct Touch {
    uint32_t root;   ///< a value that is no view
    uint32_t maker;  ///< op that makes root
    uint32_t output; ///< root's index among its maker's outputs
  };
  struct OpTouches {
    std::vector<Touch> reads, writes;
    /// Pairs of an index in `reads` and an index in `writes`.
    std::vector<std::pair<uint32_t, uint32_t>> ties;
    std::vector<Source> sources;
    /// The first backward op that reads an output of this op (a list of at most
    /// one), and the first such op of each zone.
    std::vector<uint32_t> first, firstPerZone;
  };
  struct Clone {
    uint32_t op;
    uint32_t before;        ///< a backward op
    uint32_t firstInstance; ///< instance of its first output
    uint32_t next;          ///< the next clone before the same op
  };
  /// One op execution: an op of the step, or a clone.
  struct Moment {
    uint32_t op;
    uint32_t firstTouched; ///< index in `touched`: reads, then writes
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
  std::vector<uint32_t> broughtBy; ///< per value: a backward op, or kNoOp
  std::vector<bool> isReadByBackward;
  std::vector<OpTouches> touches;
  std::vector<uint64_t> valueBytes; ///< padded
  uint32_t forwardTouched = 0;      ///< entries of `touched` in the forward
  /// Per value: index in `moments` of the first and of the last forward op that
  /// reads or writes it; -1: none.
  std::vector<int64_t> firstForward, lastForward;

  /// Per op: the backward ops before which its clones are placed.
  std::vector<std::vector<uint32_t>> readers;
  std::vector<Clone> clones; ///< contiguous per op, the latest first
  std::vector<uint32_t> cloneCounts; ///< per op
  /// Per op: index of the first clone placed before it, or kEnd. Clone::next
  /// has the others.
  std::vector<uint32_t> clonesBefore;
  std::vector<Moment> moments;   ///< the forward's are the same for all choices
  std::vector<uint32_t> touched; ///< instances
  /// Per op: the first output instance of its latest clone so far, or kEnd.
  std::vector<uint32_t> latest;
  /// Per value: its copy, if an earlier op has brought it back from the host;
  /// else kNoValue.
  std::vector<uint32_t> standIns;
  std::vector<uint64_t> bytes;     ///< per instance
  std::vector<int64_t> lastMoment; ///< per instance
  std::vector<uint8_t> held;       ///< per instance: true if it owns live bytes
  /// Per value: index in `moments` of the first op after the forward that reads
  /// or writes it.
  std::vector<int64_t> firstBackward;
  uint64_t peak = 0, excessBytes = 0;
  int64_t peakMoment = 0, peakCount = 0;
  double extraSeconds = 0;
};

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_RECOMPUTELAYOUT_H
