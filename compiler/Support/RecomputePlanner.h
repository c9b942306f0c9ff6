// SPDX-License-Identifier: MIT

// Which forward values to keep for the backward, and which to recompute.
//
// Problem. A training step is a sequence of forward ops, then backward ops that
// read some of the forward's values. Each of these values is either kept from
// the forward, or the op that makes it is repeated just before the value's
// first reader in the backward. The repeated op's inputs must then be available
// too: kept, or recomputed in turn, and so on. We look for the choice with the
// least extra time whose peak of live bytes is within a budget.
//
//   forward                      backward
//   x ──► n ──► g ──► s ──►  ...  ds(s)  dg(g)  dn(x)
//
//   keep n, g, s:   they live from the forward to their readers
//   drop s:         s' = f(g) before ds; g lives on anyway: cheap
//   drop s and g:   n' g' s' before ds, if n is dropped too; x lives on
//
// Offloaded values are in host memory until a backward op brings each of them
// back. Ops that are recomputed later read the returned copy.
//
// This is the checkpointing problem of Chen et al. (2016) on a general graph
// with costs. Checkmate (Jain et al., 2020) solves it as an integer program, in
// minutes to hours. Ours must take a second. So we make a greedy choice and
// search around it, but with exact numbers: after each choice, the whole step
// is laid out again and its live bytes are counted.
//
//   1. Start with everything kept. Find the op with the most bytes alive. Among
//      the values that only wait there for the backward, drop the one whose
//      chain costs the least time per byte freed. Repeat until the peak fits. A
//      choice that does not lower the peak is undone.
//   2. Also try fixed policies: keep only values that cross from one segment to
//      the next, with segments of 1, 2, 3, 4, 6 and 8 blocks. A segment of one
//      block is usually called gradient checkpointing. The best policy goes
//      through step 1 if it does not fit.
//   3. In each result, keep again whatever fits, the most expensive first.
//   4. If no result fits, change single choices, each with the choices that it
//      requires, as long as that reduces the bytes over the budget, summed over
//      all moments. A peak often has several causes, and removing one of them
//      does not lower it.
//   5. In the best result, exchange: change one choice, or an expensive and a
//      cheap one, and repeat steps 1 and 3 for the others. Keep the exchange if
//      it is faster.
//
// Steps 4 and 5 end after a number of ops laid out, never after a time, so that
// the plan is the same on every machine. The number suffices to try everything
// in a small step, but only a few exchanges in a model of 32 layers.
//
// Two levels. While a segment of k blocks is recomputed at once, all values of
// the k blocks are alive. If memory does not suffice for that, a policy with
// two levels is used:
//
//   kept      x0                  before the segment
//   once      x1 x2               between its blocks, when its backward begins
//   per zone  all inside a block  for x1 and x2, and again for its gradients
//
//   ... x1' x2'  [3' d3]  [2'' d2]  [1'' d1]  ...
//
// A zone is a run of backward ops of one block. An op that is recomputed per
// zone has a clone in each zone that needs it. Its results die with that zone.
//
// With L blocks, the inputs of L/k + k - 1 blocks are alive, and the values
// inside one block. For k = sqrt(L), that is about 2 sqrt(L) block inputs. With
// the sqrt(L) segments of Chen et al., all values inside a whole segment are
// alive at once. The two levels cost at most two more forwards.
//
// Two levels are one step of the recursion of Griewank's treeverse (1992;
// revolve, Griewank and Walther, 2000). For 32 blocks, a third level would save
// one or two block inputs and cost a third forward. The policies with two
// levels are tried if no other fits, and go through the same steps.
//
// The result is never slower than whole-block checkpointing with the same peak,
// because that is one of the fixed policies. Limits: within a zone a value is
// recomputed once, even if its readers are far apart; workspaces of kernels are
// not counted; the choice is not always optimal (within 3 % of the optimum on
// steps small enough to prove one, tests/e2e/recompute_gap.py).

#ifndef QLORA_COMPILER_SUPPORT_RECOMPUTEPLANNER_H
#define QLORA_COMPILER_SUPPORT_RECOMPUTEPLANNER_H

#include <cstdint>
#include <vector>

namespace qlora {

inline constexpr uint32_t kNoValue = 0xffffffffu;

/// Memory of an op's output. Weights and inputs are no values: they stay in
/// memory anyway.
struct RecomputeValue {
  uint64_t bytes = 0;
  /// The value that this is a view of (same memory and lifetime), or kNoValue.
  uint32_t partOf = kNoValue;
};

struct RecomputeOp {
  std::vector<uint32_t> inputs;  ///< values that it reads
  std::vector<uint32_t> outputs; ///< values that it makes; each has one maker
  double seconds = 0;
  int64_t block = -1; ///< decoder block; -1: none
  bool isBackward = false;
  /// The outputs are views of the only input. A view costs nothing. It is kept
  /// or recomputed together with the op that makes the input.
  bool isView = false;
  /// An output that reuses the memory of an input of the same size, if nothing
  /// reads the input later. If several ties are possible, the first is used.
  struct Tie {
    uint32_t input, output;
  };
  std::vector<Tie> ties;
  /// The forward value that this backward op brings back from the host, else
  /// kNoValue. Later ops read the op's only output instead of that value.
  uint32_t standsFor = kNoValue;
};

/// Forward ops first, then backward ops, in program order.
struct RecomputeProblem {
  std::vector<RecomputeValue> values;
  std::vector<RecomputeOp> ops;
};

struct RecomputePlan {
  /// Per op: the backward ops before which a clone of it is placed, in order.
  /// Clones before the same op are in the order of their ops. A reader uses the
  /// latest clone of the op that makes its operand.
  std::vector<std::vector<uint32_t>> before;
  uint64_t peakBytes = 0;
  double seconds = 0; ///< total time of recomputed ops
};

/// Numbers the zones of a step, op by op. A new zone begins when the block of
/// the backward changes. An op without a block belongs to the current zone.
class ZoneCounter {
public:
  /// Returns the zone of the next op.
  uint32_t enter(bool isBackward, int64_t block);

private:
  uint32_t zone = 0;
  int64_t last = -1; ///< block
};

/// Returns the zone of each op.
std::vector<uint32_t> zonesOf(const RecomputeProblem &problem);

/// Plans to keep everything.
RecomputePlan planWithoutRecompute(const RecomputeProblem &problem);

/// Plans to keep only values that cross from one segment of `blocksPerSegment`
/// blocks to another, and values without a block. If `isNested`, uses two
/// levels: inside a segment, values that cross from one block to another are
/// recomputed once, the others per zone.
RecomputePlan planSegments(const RecomputeProblem &problem,
                           int64_t blocksPerSegment, bool isNested = false);

/// Returns the fastest plan found within `budget` bytes, or the one with the
/// lowest peak if none fits. Deterministic.
RecomputePlan planRecompute(const RecomputeProblem &problem, uint64_t budget);

/// Plans segments of one block. If their peak exceeds the budget (0: no
/// budget), recomputes more.
RecomputePlan planBlocks(const RecomputeProblem &problem, uint64_t budget);

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_RECOMPUTEPLANNER_H
