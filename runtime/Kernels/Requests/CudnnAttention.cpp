// SPDX-License-Identifier: MIT

// Requests of attention.cudnn and attention_grad.cudnn. What a plan needs was
// read from plans that cuDNN 9.19 to 9.28 made for described devices; where
// another version needs more, its plan is passed over at load.

#include "runtime/Kernels/Requests/CudaWorkspaces.h"

#include <algorithm>

namespace qlora::requests {

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
  plan.delta = cudaAttentionDelta(r);
  if (r.dtype("segments"))
    plan.lse = plan.delta;
  const Size heads = Size(plan.batch) * Size(plan.keyHeads) *
                     Size(r.constant("heads") / keyHeads);
  const Size length = r.constant("length");
  const Size numbers = heads * length * Size(r.constant("dim"));
  plan.dqSum = (numbers * Size(4)).aligned();
  const Size least = Size(kCudnnTile * 1024);
  plan.scratch = numbers * Size(8) + least;
  const Size scores = heads * length * length * Size(2);
  if (scores.bytes() <= kCudnnMaxScores) {
    plan.scores = scores;
    plan.scratch = largest(plan.scratch, scores + numbers * Size(4) + least);
  }
  plan.scratch = plan.scratch.aligned();
  return plan;
}

void attention_grad::cudnn::tune(KernelRequest &r, bool isSmall) {
  const int64_t keyHeads = r.constant("kv_heads");
  const int64_t tiles = (r.constant("length") + kCudnnTile - 1) / kCudnnTile;
  const int64_t blocks = r.constant("heads") / keyHeads * tiles;
  const int64_t wanted = (kCudnnBlocks + blocks - 1) / blocks;
  r.constants[r.op->constantIndex("slots")] =
      isSmall ? 1 : std::min(wanted, r.constant("batch") * keyHeads);
}

static Reason needMultiples(const KernelRequest &r, int64_t of,
                            std::initializer_list<std::string_view> names) {
  for (std::string_view name : names)
    if (r.constant(name) % of != 0)
      return std::string(name) + " must be a multiple of " +
             std::to_string(of) + ", got " + std::to_string(r.constant(name));
  return std::nullopt;
}

/// Loads are of 16 bytes.
static constexpr int64_t kCudnnNumbersOfLoad = 8;

static Reason needCudnn(const KernelRequest &r) {
  if (typeOf(r, "q") != QLORA_DTYPE_BF16)
    return "q must be bf16, got " + std::string(dtypeName(typeOf(r, "q")));
  if (r.constant("dim") > 256)
    return "dim must be at most 256, got " + std::to_string(r.constant("dim"));
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

Reason attention::cudnn::reject(const KernelRequest &r) {
  return firstOf([&] { return reference::reject(r); },
                 [&] { return needCudnn(r); });
}

uint64_t attention::cudnn::workspaceBytes(const KernelRequest &) {
  return kCudnnForwardScratch;
}

Reason attention_grad::cudnn::reject(const KernelRequest &r) {
  return firstOf([&] { return reference::reject(r); },
                 [&] { return needCudnn(r); },
                 [&] {
                   return needMultiples(r, kCudnnNumbersOfLoad,
                                        {"lddo", "lddq", "lddk", "lddv"});
                 });
}

uint64_t attention_grad::cudnn::workspaceBytes(const KernelRequest &r) {
  return CudnnGradientPlan::of(r).total().bytes();
}

} // namespace qlora::requests
