// SPDX-License-Identifier: MIT

// The plans of attention.cudnn and attention_grad.cudnn. What one needs was
// read from plans that cuDNN 9.19 to 9.28 made for described devices; where
// another version needs more, its plan is passed over at load.

#include "runtime/Kernels/Plans/CudaWorkspaces.h"

#include <algorithm>

namespace qlora::plans {

/// Rows of the largest tile that an engine cuts positions into.
static constexpr int64_t kCudnnTile = 128;

/// Blocks of a tile that a piece should have, so that the last ones leave few
/// multiprocessors idle: eight for each of a large card's.
static constexpr int64_t kCudnnBlocks = 1024;

static int64_t largestDivisor(int64_t number, int64_t atMost) {
  int64_t divisor = std::min(number, atMost);
  while (number % divisor != 0)
    --divisor;
  return divisor;
}

CudnnGradientPlan CudnnGradientPlan::of(const KernelRequest &r) {
  const int64_t keyHeads = r.constant("kv_heads");
  const int64_t slots = r.constant("slots");
  CudnnGradientPlan plan;
  plan.keyHeads = largestDivisor(keyHeads, slots);
  if (slots >= keyHeads)
    plan.batch = largestDivisor(r.constant("batch"), slots / keyHeads);
  const Size rows = cudaAttentionDelta(r);
  WorkspaceLayout layout(kCudaAlignment);
  if (r.dtype("segments"))
    plan.lse = layout.add(rows);
  plan.delta = layout.add(rows);
  const Size heads = Size(plan.batch) * Size(plan.keyHeads) *
                     Size(r.constant("heads") / keyHeads);
  const Size length = r.constant("length");
  const Size numbers = heads * length * Size(r.constant("dim"));
  const Size least = Size(kCudnnTile * 1024);
  Size scratch = numbers * Size(8) + least;
  const Size scores = heads * length * length * Size(2);
  if (scores.bytes() <= kCudnnMaxScores) {
    plan.scores = scores;
    scratch = largest(scratch, scores + numbers * Size(4) + least);
  }
  plan.scratch = layout.add(scratch.aligned());
  const uint64_t sum = (numbers * Size(4)).aligned().bytes();
  plan.dqSum = {plan.scratch.offset, sum};
  plan.besideSum = {plan.scratch.offset + sum, plan.scratch.bytes - sum};
  plan.total = layout.end();
  return plan;
}

void attention_grad::cudnn::tune(KernelRequest &r, WorkspaceSize size) {
  const int64_t keyHeads = r.constant("kv_heads");
  const int64_t tiles = (r.constant("length") + kCudnnTile - 1) / kCudnnTile;
  const int64_t blocks = r.constant("heads") / keyHeads * tiles;
  const int64_t wanted = (kCudnnBlocks + blocks - 1) / blocks;
  r.constants[r.op->constantIndex("slots")] =
      size == WorkspaceSize::kSmall
          ? 1
          : std::min(wanted, r.constant("batch") * keyHeads);
}

static Reason needMultiples(const KernelRequest &r, int64_t of,
                            std::initializer_list<std::string_view> names) {
  for (std::string_view name : names)
    if (r.constant(name) % of != 0)
      return refusalOf(r, name, "be a multiple of " + std::to_string(of));
  return std::nullopt;
}

/// Loads are of 16 bytes.
static constexpr int64_t kCudnnNumbersOfLoad = 8;

static Reason needCudnn(const KernelRequest &r) {
  if (r.type("q") != QLORA_DTYPE_BF16)
    return "q must be bf16, got " + std::string(dtypeName(r.type("q")));
  if (r.constant("dim") > 256)
    return refusalOf(r, "dim", "be at most 256");
  // Strides of scores that no memory holds are numbers all the same.
  const Size scores = Size(r.constant("batch")) * Size(r.constant("heads")) *
                      Size(r.constant("length")) * Size(r.constant("length"));
  if (scores.bytes() > uint64_t(1) << 60)
    return "more than 2^60 scores";
  // Behind a sequence that ends inside of a tile, not every engine of cuDNN 9
  // masks: gradients on sm_90 have been NaN where lse was below -88.
  if (Reason reason = needMultiples(r, kCudnnTile, {"length"}))
    return reason;
  return needMultiples(r, kCudnnNumbersOfLoad,
                       {"dim", "ldq", "ldk", "ldv", "ldo"});
}

Reason attention::cudnn::limits(const KernelRequest &r) { return needCudnn(r); }

uint64_t attention::cudnn::workspaceBytes(const KernelRequest &) {
  return kCudnnForwardScratch;
}

Reason attention_grad::cudnn::limits(const KernelRequest &r) {
  if (Reason reason = needCudnn(r))
    return reason;
  return needMultiples(r, kCudnnNumbersOfLoad,
                       {"lddo", "lddq", "lddk", "lddv"});
}

uint64_t attention_grad::cudnn::workspaceBytes(const KernelRequest &r) {
  return CudnnGradientPlan::of(r).total.bytes();
}

} // namespace qlora::plans
