// SPDX-License-Identifier: MIT

// Requests of attention.cudnn and attention_grad.cudnn. What a plan needs was
// read from plans that cuDNN 9.19 and 9.26 made for described devices; where
// another version needs more, its plan is passed over at load.

#include "runtime/Kernels/Requests/CudaWorkspaces.h"

namespace qlora::requests {

/// Rows of the largest tile that an engine cuts positions into.
static constexpr int64_t kCudnnTile = 128;

CudnnGradientPlan CudnnGradientPlan::of(const KernelRequest &r) {
  const Size heads = Size(r.constant("batch")) * Size(r.constant("heads"));
  const Size length = r.constant("length");
  const Size numbers = heads * length * Size(r.constant("dim"));
  CudnnGradientPlan plan;
  plan.delta = cudaAttentionDelta(r);
  if (r.dtype("segments"))
    plan.lse = plan.delta;
  plan.dqSum = (numbers * Size(4)).aligned();
  const Size least = Size(kCudnnTile * 1024);
  plan.scratch = numbers * Size(8) + least;
  const Size scores = heads * length * length * Size(2);
  if (scores.bytes() <= kCudnnMaxScores)
    plan.scratch = largest(plan.scratch, scores + numbers * Size(4) + least);
  plan.scratch = plan.scratch.aligned();
  return plan;
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

static Reason needGradientSpace(const KernelRequest &r) {
  const Size total = CudnnGradientPlan::of(r).total();
  if (total.bytes() > kCudnnMaxGradient)
    return "it needs " + std::to_string(total.bytes()) +
           " bytes of workspace, more than " +
           std::to_string(kCudnnMaxGradient);
  return std::nullopt;
}

Reason attention_grad::cudnn::reject(const KernelRequest &r) {
  return firstOf([&] { return reference::reject(r); },
                 [&] { return needCudnn(r); },
                 [&] {
                   return needMultiples(r, kCudnnNumbersOfLoad,
                                        {"lddo", "lddq", "lddk", "lddv"});
                 },
                 [&] { return needGradientSpace(r); });
}

uint64_t attention_grad::cudnn::workspaceBytes(const KernelRequest &r) {
  return CudnnGradientPlan::of(r).total().bytes();
}

} // namespace qlora::requests
