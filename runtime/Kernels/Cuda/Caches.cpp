// SPDX-License-Identifier: MIT

// Prepares cache_rows and cached_attention (Device/Caches.cu). cached_attention
// has a variant for any operands, and faster ones for aligned caches with heads
// of up to 64, 128 or 256 dimensions.

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/CudaKernel.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

namespace qlora::cuda {

/// Threads per block of cached_attention.
static constexpr unsigned kCachedThreads = 128;
/// Alignment of the caches in bytes, and of heads in elements, for variants
/// other than `any`.
static constexpr uintptr_t kCacheAlignment = 16;
static constexpr int64_t kCacheAlignedDims = 8;

PreparedCudaKernel cache_rows::cuda::prepare(const KernelRequest &r,
                                             CudaContext &context) {
  return makeOpKernel(r, {"x", "cache"}, r.constant("rows"), context);
}

/// Returns the suffix of the variant for aligned caches.
static std::string_view alignedVariant(int64_t dim) {
  if (dim % kCacheAlignedDims != 0 || dim > plans::kCachedDims)
    return "any";
  return dim <= 64 ? "64" : dim <= 128 ? "128" : "256";
}

PreparedCudaKernel cached_attention::cuda::prepare(const KernelRequest &r,
                                                   CudaContext &context) {
  const plans::CudaCachedPlan plan = plans::CudaCachedPlan::of(r);
  std::vector<int64_t> constants = r.constants;
  constants.push_back(plan.ranges);
  constants.push_back(static_cast<int64_t>(plan.states.offset));
  constants.push_back(r.type("q") == QLORA_DTYPE_BF16);
  const auto launchOf = [&](std::string_view variant) {
    return CudaLaunch::prepare(context,
                               fmt::format("qlora_cached_attention_{}_{}",
                                           dtypeName(r.type("keys")), variant),
                               {plan.blocks, kCachedThreads}, constants);
  };
  QLORA_ASSIGN_OR_RETURN(const CudaLaunch aligned,
                         launchOf(alignedVariant(r.constant("dim"))));
  QLORA_ASSIGN_OR_RETURN(const CudaLaunch any, launchOf("any"));
  std::optional<CudaLaunch> join;
  if (plan.ranges > 0) {
    const int64_t rows =
        r.constant("batch") * r.constant("length") * r.constant("heads");
    QLORA_ASSIGN_OR_RETURN(
        join, CudaLaunch::prepare(context, "qlora_cached_attention_join",
                                  {rows, kCachedThreads}, constants));
  }
  return makeCudaKernel([=](const CudaKernelArgs &args) -> Status {
    const bool isAligned = (reinterpret_cast<uintptr_t>(args.buffers[1]) |
                            reinterpret_cast<uintptr_t>(args.buffers[2])) %
                               kCacheAlignment ==
                           0;
    QLORA_RETURN_IF_ERROR(
        (isAligned ? aligned : any).enqueue(args.buffers, args));
    return join ? join->enqueue(args.buffers, args) : Status::ok();
  });
}

} // namespace qlora::cuda
