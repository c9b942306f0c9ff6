// SPDX-License-Identifier: MIT

// The workspaces of attention with cuDNN.
//
// Scratch sizes are those of plans that cuDNN 9.19 to 9.28 made from device
// descriptions. If another version's plan needs more, loading skips that plan.

#include "runtime/Kernels/Plans/CudaWorkspaces.h"

#include <algorithm>

namespace qlora::plans {

/// Rows of the largest tile of queries or keys in any engine.
static constexpr int64_t kCudnnTile = 128;

/// Wanted number of thread blocks in a pass: eight per multiprocessor of a
/// large GPU, so that the last blocks leave few multiprocessors idle.
static constexpr int64_t kCudnnBlocks = 1024;

static int64_t largestDivisor(int64_t number, int64_t atMost) {
  int64_t divisor = std::min(number, atMost);
  while (number % divisor != 0)
    --divisor;
  return divisor;
}

static Part addReach(WorkspaceLayout &layout, const KernelRequest &r) {
  return r.dtype("segments") ? layout.add(Size(r.constant("batch")) *
                                          Size(r.constant("length")) * Size(4))
                             : Part();
}

CudnnForwardPlan CudnnForwardPlan::of(const KernelRequest &r) {
  CudnnForwardPlan plan;
  WorkspaceLayout layout(kCudaAlignment);
  plan.scratch = layout.add(Size(kCudnnForwardScratch));
  plan.reach = addReach(layout, r);
  plan.total = layout.end();
  return plan;
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
  plan.reach = addReach(layout, r);
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

void tuneCudnnGradient(KernelRequest &r, WorkspaceSize size) {
  const int64_t keyHeads = r.constant("kv_heads");
  const int64_t tiles = (r.constant("length") + kCudnnTile - 1) / kCudnnTile;
  const int64_t blocks = r.constant("heads") / keyHeads * tiles;
  const int64_t wanted = (kCudnnBlocks + blocks - 1) / blocks;
  r.constants[r.op->constantIndex("slots")] =
      size == WorkspaceSize::kSmall
          ? 1
          : std::min(wanted, r.constant("batch") * keyHeads);
}

static Reason needCudnn(const KernelRequest &r) {
  if (r.type("q") != QLORA_DTYPE_BF16)
    return "q must be bf16, got " + std::string(dtypeName(r.type("q")));
  if (r.constant("dim") > 256)
    return refusalOf(r, "dim", "be at most 256");
  if (r.constantAsDouble("cap") != 0)
    return "scores have a cap";
  // cuDNN computes strides of the scores, even if no memory holds the scores.
  const Size scores = Size(r.constant("batch")) * Size(r.constant("heads")) *
                      Size(r.constant("length")) * Size(r.constant("length"));
  if (scores.bytes() > uint64_t(1) << 60)
    return "more than 2^60 scores";
  // Not every engine of cuDNN 9 masks the positions after a sequence that ends
  // inside a tile: gradients on sm_90 have been NaN for lse below -88.
  if (Reason reason = needMultiples(r, kCudnnTile, {"length"}))
    return reason;
  return needMultiples(r, kNumbersOfLoad, {"dim", "ldq", "ldk", "ldv", "ldo"});
}

Reason attention::cudnn::limits(const KernelRequest &r) {
  if (r.dtype("sinks"))
    return "scores have sinks";
  return needCudnn(r);
}

uint64_t cudnnWorkspace(const KernelRequest &r) {
  return CudnnForwardPlan::of(r).total.bytes();
}

Reason attention_grad::cudnn::limits(const KernelRequest &r) {
  if (Reason reason = needCudnn(r))
    return reason;
  return needMultiples(r, kNumbersOfLoad, {"lddo", "lddq", "lddk", "lddv"});
}

uint64_t cudnnGradientWorkspace(const KernelRequest &r) {
  return CudnnGradientPlan::of(r).total.bytes();
}

} // namespace qlora::plans
