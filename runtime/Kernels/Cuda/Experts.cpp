// SPDX-License-Identifier: MIT

// The ops of experts: launches of Device/Experts.cu.

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/Gemm.h"

namespace qlora {
namespace cuda {

/// Threads of a block, and rows and columns of a tile, of Device/Experts.cu.
static constexpr int64_t kThreads = 256, kGroupTile = 32;

PreparedCudaKernel route::cuda::prepare(const KernelRequest &r,
                                        CudaContext &context) {
  return makeLaunchKernel(
      context,
      {{fmt::format("qlora_route_{}", dtypeName(r.type("logits"))),
        {blocksOf(r.constant("rows"), kThreads)}}},
      r.constants);
}

PreparedCudaKernel route_grad::cuda::prepare(const KernelRequest &r,
                                             CudaContext &context) {
  return makeLaunchKernel(
      context,
      {{fmt::format("qlora_route_grad_{}", dtypeName(r.type("logits"))),
        {blocksOf(r.constant("rows"), kThreads)}}},
      r.constants);
}

PreparedCudaKernel sort_by_expert::cuda::prepare(const KernelRequest &r,
                                                 CudaContext &context) {
  return makeLaunchKernel(context, {{"qlora_sort_by_expert", {1}}},
                          r.constants);
}

PreparedCudaKernel gather_rows::cuda::prepare(const KernelRequest &r,
                                              CudaContext &context) {
  return makeLaunchKernel(
      context,
      {{fmt::format("qlora_gather_rows_{}", dtypeName(r.type("x"))),
        {r.constant("rows") * r.constant("chosen")}}},
      r.constants);
}

PreparedCudaKernel combine_rows::cuda::prepare(const KernelRequest &r,
                                               CudaContext &context) {
  return makeLaunchKernel(
      context,
      {{fmt::format("qlora_combine_rows_{}", dtypeName(r.type("x"))),
        {r.constant("rows")}}},
      r.constants);
}

PreparedCudaKernel choice_grad::cuda::prepare(const KernelRequest &r,
                                              CudaContext &context) {
  return makeLaunchKernel(
      context,
      {{fmt::format("qlora_choice_grad_{}", dtypeName(r.type("x"))),
        {r.constant("rows") * r.constant("chosen")}}},
      r.constants);
}

PreparedCudaKernel transpose_rows::cuda::prepare(const KernelRequest &r,
                                                 CudaContext &context) {
  return makeLaunchKernel(
      context,
      {{fmt::format("qlora_transpose_rows_{}", dtypeName(r.type("x"))),
        {r.constant("rows")}}},
      r.constants);
}

/// A weight of another type than a's is decoded whole first.
PreparedCudaKernel grouped_matmul::cuda::prepare(const KernelRequest &r,
                                                 CudaContext &context) {
  const qlora_dtype type = r.type("a");
  std::optional<CudaLaunch> decode;
  if (r.type("w") != type) {
    QLORA_ASSIGN_OR_RETURN(decode, prepareDecode(r, type, context));
  }
  const int64_t columns = r.op->shapes(r).each[3].columns;
  // Each group's last one, and that of the rows behind them, may be cut.
  const int64_t tiles =
      r.constant("m") / kGroupTile + r.constant("groups") + 1;
  QLORA_ASSIGN_OR_RETURN(
      const CudaLaunch product,
      CudaLaunch::prepare(
          context, fmt::format("qlora_grouped_matmul_{}", dtypeName(type)),
          {tiles * blocksOf(columns, kGroupTile)}, r.constants));
  return makeCudaKernel([=](const CudaKernelArgs &args) -> Status {
    std::vector<void *> buffers(args.buffers.begin(), args.buffers.end());
    if (decode) {
      QLORA_RETURN_IF_ERROR(decode->enqueue(buffers[1], buffers[4], args));
      buffers[1] = buffers[4];
    }
    return product.enqueue(buffers, args);
  });
}

PreparedCudaKernel grouped_weight_grad::cuda::prepare(const KernelRequest &r,
                                                      CudaContext &context) {
  const int64_t numbers =
      r.constant("groups") * r.constant("rows") * r.constant("columns");
  return makeLaunchKernel(
      context,
      {{fmt::format("qlora_grouped_weight_grad_{}_{}", dtypeName(r.type("dy")),
                    dtypeName(r.type("x"))),
        {blocksOf(numbers, kThreads)}}},
      r.constants);
}

} // namespace cuda
} // namespace qlora
