// SPDX-License-Identifier: MIT

// attention and attention_grad: the launches of Device/Attention.cu.

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/CudaKernels.h"

namespace qlora::cuda {

/// Rows of a tile, as in Device/Attention.cu.
static constexpr int64_t kTile = 64;
/// Rows of one block of the delta kernel: one a warp.
static constexpr int64_t kDeltaRows = 8;

/// Dimensions that one block computes.
static constexpr int64_t kDimensions = 128;

static std::string symbolOf(std::string_view kernel, const KernelRequest &r) {
  return fmt::format("qlora_{}_{}", kernel, dtypeName(cudaDtypeOf(r, "q")));
}

/// Blocks of 64 rows of the heads that the constant `heads` counts. No
/// product overflows: extents are at most 2^24, and 2^62 blocks are refused.
static int64_t tilesOf(const KernelRequest &r, std::string_view heads) {
  const int64_t parts = blocksOf(r.constant("dim"), kDimensions);
  const __int128 blocks = __int128(blocksOf(r.constant("length"), kTile)) *
                          r.constant("batch") * r.constant(heads) * parts;
  return static_cast<int64_t>(std::min<__int128>(blocks, __int128(1) << 62));
}

PreparedCudaKernel attention::cuda::prepare(const KernelRequest &r,
                                            CudaContext &context) {
  return makeLaunchKernel(context, symbolOf("attention", r),
                          {tilesOf(r, "heads")}, r.constants);
}

PreparedCudaKernel attention_grad::cuda::prepare(const KernelRequest &r,
                                                 CudaContext &context) {
  const int64_t rows =
      r.constant("batch") * r.constant("length") * r.constant("heads");
  std::vector<int64_t> constants = r.constants;
  constants.push_back(rows);
  QLORA_ASSIGN_OR_RETURN(
      CudaLaunch delta,
      CudaLaunch::prepare(context, symbolOf("attention_delta", r),
                          {blocksOf(rows, kDeltaRows)}, constants));
  QLORA_ASSIGN_OR_RETURN(
      CudaLaunch keys,
      CudaLaunch::prepare(context, symbolOf("attention_grad_keys", r),
                          {tilesOf(r, "kv_heads")}, constants));
  QLORA_ASSIGN_OR_RETURN(
      CudaLaunch queries,
      CudaLaunch::prepare(context, symbolOf("attention_grad_queries", r),
                          {tilesOf(r, "heads")}, constants));
  return makeCudaKernel([=](const CudaKernelArgs &args) {
    QLORA_RETURN_IF_ERROR(delta.enqueue(args.buffers, args));
    QLORA_RETURN_IF_ERROR(keys.enqueue(args.buffers, args));
    return queries.enqueue(args.buffers, args);
  });
}

} // namespace qlora::cuda
