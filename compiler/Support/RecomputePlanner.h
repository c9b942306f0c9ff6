// SPDX-License-Identifier: MIT

// Which forward values to keep for the backward, and which to compute again.
//
// The problem. A training step is a straight line: forward ops, then backward
// ops that read some of the forward's values. Each value read there is either
// kept from where it is made, or its op is done again just before its first
// reader in the backward. What that op reads must then be there too: kept, or
// computed again in its turn, and so on. We look for the choice with the least
// extra time whose peak of live bytes is within a budget.
//
//   forward                      backward
//   x ──► n ──► g ──► s ──►  ...  ds(s)  dg(g)  dn(x)
//
//   keep n, g, s:   they live from the forward to their readers
//   drop s:         s' = f(g) before ds; g lives on anyway: cheap
//   drop s and g:   n' g' s' before ds, if n is dropped too; x lives on
//
// Some values wait elsewhere, and an op of the backward brings each of them back:
// whatever is computed again after that reads what it has brought, and nothing asks
// for the value itself.
//
// It is the checkpointing problem of Chen et al. (2016) on a general graph
// with costs (Checkmate, Jain et al., 2020, solves it as an integer program,
// in minutes to hours). Ours has to be done in a second, so it is a greedy
// choice that is then searched around, but on exact numbers: after each choice
// the whole step is laid out again and its live bytes counted.
//
//   1. Start with everything kept. Find the op where most is alive. Among the
//      values that only wait there for the backward, drop the one whose chain
//      costs least time per byte freed; repeat until the peak fits. A choice
//      that does not lower the peak is taken back.
//   2. In the other direction, the fixed policies: keep only what crosses from
//      one segment to the next, with segments of 1, 2, 3, 4, 6 and 8 blocks.
//      One of one block is what others call gradient checkpointing. The best
//      goes through step 1 where it does not fit.
//   3. In each, keep again whatever fits again, the most expensive first.
//   4. Where none fits, turn single choices around, each with those that it
//      asks for, as long as fewer bytes, summed over all moments, are over
//      the budget: a peak often has several causes, and none alone lowers it.
//   5. In the best, exchange: turn one choice around, or a dear and a cheap
//      one, and do steps 1 and 3 with the others; keep it if it is faster.
//
// Steps 4 and 5 end after a number of ops laid out, never after a time, so
// that the plan is the same on every machine. That is enough to try all of a
// small step, but only a few exchanges of a model of 32 layers.
//
// Twice. A segment of k blocks that is computed again as a whole holds all
// that k blocks make. Where memory is that short, its policy has two levels:
//
//   kept      x0                  before the segment
//   once      x1 x2               between its blocks, when its backward begins
//   per zone  all inside a block  for x1 and x2, and again for its gradients
//
//   ... x1' x2'  [3' d3]  [2'' d2]  [1'' d1]  ...
//
// A zone is a run of backward ops of one block; an op that is computed again
// per zone has a clone in each that needs it, which dies with it. L blocks then
// hold L/k + k - 1 boundaries and the inside of one block, for at most two
// forwards more: the sqrt(L) of Chen et al. without the inside of a whole
// segment. It is one level of the recursion of Griewank's treeverse (1992;
// revolve, Griewank and Walther, 2000); one more would save a boundary or two
// of 32 blocks for a third forward. These policies are tried where no other
// fits, and go through the same steps.
//
// So the result is never slower than whole-block checkpointing with the same
// peak. Limits: within a zone a value is recomputed once, even where its
// readers are far apart; workspaces of kernels are not counted; the choice is
// not always optimal (within 3 % of it on steps small enough to prove one,
// tests/e2e/recompute_gap.py).

#ifndef QLORA_COMPILER_SUPPORT_RECOMPUTEPLANNER_H
#define QLORA_COMPILER_SUPPORT_RECOMPUTEPLANNER_H

#include <cstdint>
#include <vector>

namespace qlora {

inline constexpr uint32_t kNoValue = 0xffffffffu;

/// Memory that an op makes. What costs nothing to keep (weights, inputs) is
/// not a value.
struct RecomputeValue {
  uint64_t bytes = 0;
  /// The value that this one is a part of, or kNoValue. Parts share memory
  /// and life with it.
  uint32_t partOf = kNoValue;
};

struct RecomputeOp {
  std::vector<uint32_t> inputs;  ///< values that it reads
  std::vector<uint32_t> outputs; ///< values that it makes; each has one maker
  double seconds = 0;
  int64_t block = -1; ///< decoder block; -1: none
  bool isBackward = false;
  /// The outputs are parts of the only input: costs nothing, and goes with
  /// the op that makes the input.
  bool isView = false;
  /// The output takes over the memory of the input, which has as many bytes,
  /// if that is not read later. The first such pair of each counts.
  struct Tie {
    uint32_t input, output;
  };
  std::vector<Tie> ties;
  /// Of an op of the backward: the value of the forward that its only output is
  /// again, or kNoValue.
  uint32_t standsFor = kNoValue;
};

/// Forward ops first, then backward ops, in program order.
struct RecomputeProblem {
  std::vector<RecomputeValue> values;
  std::vector<RecomputeOp> ops;
};

struct RecomputePlan {
  /// Per op: the backward ops that it is computed again before, in order.
  /// Clones before the same one come in their ops' order, and whoever reads
  /// what an op makes takes the latest of its clones.
  std::vector<std::vector<uint32_t>> before;
  uint64_t peakBytes = 0;
  double seconds = 0; ///< of all that is computed again
};

/// Numbers the zones of a step, op by op: a new one begins where the block of
/// the backward changes. What has no block belongs to the zone that it is in.
class ZoneCounter {
public:
  /// The zone of the next op.
  uint32_t enter(bool isBackward, int64_t block);

private:
  uint32_t zone = 0;
  int64_t last = -1; ///< block
};

/// The zone of each op.
std::vector<uint32_t> zonesOf(const RecomputeProblem &problem);

/// Everything kept.
RecomputePlan planWithoutRecompute(const RecomputeProblem &problem);

/// Only what crosses from one segment of `blocksPerSegment` blocks to another,
/// and what has no block, is kept.
RecomputePlan planSegments(const RecomputeProblem &problem,
                           int64_t blocksPerSegment);

/// The same in two levels: inside a segment, what crosses from one block to
/// another is recomputed once, the rest per zone.
RecomputePlan planNested(const RecomputeProblem &problem,
                         int64_t blocksPerSegment);

/// The least time within `budget` bytes; the lowest peak found if none is.
/// Deterministic.
RecomputePlan planRecompute(const RecomputeProblem &problem, uint64_t budget);

/// The segments of one block, and more where that alone is over the budget
/// (0: no budget).
RecomputePlan planBlocks(const RecomputeProblem &problem, uint64_t budget);

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_RECOMPUTEPLANNER_H
