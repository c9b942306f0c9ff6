// SPDX-License-Identifier: MIT

// quantize and quantize_scales: launches of Device/Quantize.cu.

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/CudaKernels.h"
#include "runtime/Kernels/Math/NF4.h"
#include "runtime/Kernels/Math/NF4Quantize.h"

namespace qlora::cuda {

/// NF4 blocks of one block of threads.
static constexpr int64_t kBlocksOfABlock = 8;

PreparedCudaKernel quantize::cuda::prepare(const KernelRequest &r,
                                           CudaContext &context) {
  const int64_t blocks = blocksOf(r.constant("elements"), r.constant("block"));
  return makeLaunchKernel(
      context,
      fmt::format("qlora_quantize_{}", dtypeName(cudaDtypeOf(r, "x"))),
      {blocksOf(blocks, kBlocksOfABlock)}, r.constants);
}

PreparedCudaKernel quantize_scales::cuda::prepare(const KernelRequest &r,
                                                  CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(
      CudaLaunch offset,
      CudaLaunch::prepare(context, "qlora_quantize_offset",
                          {1, kNF4MeanPartials}, r.constants));
  QLORA_ASSIGN_OR_RETURN(
      CudaLaunch runs,
      CudaLaunch::prepare(context, "qlora_quantize_scales",
                          {blocksOf(r.constant("blocks"), kNF4NestedBlock)},
                          r.constants));
  return makeCudaKernel([offset, runs](const CudaKernelArgs &args) {
    QLORA_RETURN_IF_ERROR(offset.enqueue(args.buffers, args));
    return runs.enqueue(args.buffers, args);
  });
}

} // namespace qlora::cuda
