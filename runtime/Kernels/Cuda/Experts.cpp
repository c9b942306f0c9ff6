// SPDX-License-Identifier: MIT

// Prepares the ops for experts (Device/Experts.cu, Device/GroupedBF16.cu).

#include "runtime/Kernels/Cuda/Gemm.h"

namespace qlora::cuda {

/// Threads per block of Device/Experts.cu.
static constexpr int64_t kThreads = 256;

namespace {
/// The tile of a grouped GEMM that a block computes, and its threads.
struct GroupTile {
  int64_t rows, columns;
  unsigned threads;
};
} // namespace

/// kPlainTile is for Device/Experts.cu; kTensorTile is for
/// Device/GroupedBF16.cu, which loads words of kWordBytes.
static constexpr GroupTile kPlainTile = {32, 32, 256},
                           kTensorTile = {64, 128, 128};
static constexpr uintptr_t kWordBytes = 16;

PreparedCudaKernel route::cuda::prepare(const KernelRequest &r,
                                        CudaContext &context) {
  return makeOpKernel(r, {"logits"}, blocksOf(r.constant("rows"), kThreads),
                      context);
}

PreparedCudaKernel route_grad::cuda::prepare(const KernelRequest &r,
                                             CudaContext &context) {
  return makeOpKernel(r, {"logits"}, blocksOf(r.constant("rows"), kThreads),
                      context);
}

PreparedCudaKernel sort_by_expert::cuda::prepare(const KernelRequest &r,
                                                 CudaContext &context) {
  return makeOpKernel(r, {}, 1, context);
}

PreparedCudaKernel gather_rows::cuda::prepare(const KernelRequest &r,
                                              CudaContext &context) {
  return makeOpKernel(r, {"x"}, r.constant("rows") * r.constant("chosen"),
                      context);
}

PreparedCudaKernel combine_rows::cuda::prepare(const KernelRequest &r,
                                               CudaContext &context) {
  return makeOpKernel(r, {"x"}, r.constant("rows"), context);
}

PreparedCudaKernel choice_grad::cuda::prepare(const KernelRequest &r,
                                              CudaContext &context) {
  return makeOpKernel(r, {"x"}, r.constant("rows") * r.constant("chosen"),
                      context);
}

PreparedCudaKernel transpose_rows::cuda::prepare(const KernelRequest &r,
                                                 CudaContext &context) {
  return makeOpKernel(r, {"x"}, r.constant("rows"), context);
}

static StatusOr<CudaLaunch> prepareGrouped(const KernelRequest &r,
                                           const std::string &suffix,
                                           const GroupTile &tile,
                                           CudaContext &context) {
  const int64_t columns = r.op->shapes(r).each[3].columns;
  // An upper bound. One tile may be partial in each group, and one among the
  // rows after the last group.
  const int64_t tiles = r.constant("m") / tile.rows + r.constant("groups") + 1;
  return CudaLaunch::prepare(
      context, "qlora_grouped_matmul_" + suffix,
      {tiles * blocksOf(columns, tile.columns), tile.threads}, r.constants);
}

/// Launches `aligned` if a and w are aligned to kWordBytes, otherwise `any`. If
/// the types of w and a differ, decodes all of w first.
static PreparedCudaKernel groupedKernel(const KernelRequest &r,
                                        const CudaLaunch &aligned,
                                        const CudaLaunch &any,
                                        CudaContext &context) {
  std::optional<CudaLaunch> decode;
  if (r.type("w") != r.type("a")) {
    QLORA_ASSIGN_OR_RETURN(decode, prepareDecode(r, r.type("a"), context));
  }
  return makeCudaKernel([=](const CudaKernelArgs &args) -> Status {
    std::vector<void *> buffers(args.buffers.begin(), args.buffers.end());
    if (decode) {
      QLORA_RETURN_IF_ERROR(decode->enqueue(buffers[1], buffers[4], args));
      buffers[1] = buffers[4];
    }
    const bool isAligned = (reinterpret_cast<uintptr_t>(buffers[0]) |
                            reinterpret_cast<uintptr_t>(buffers[1])) %
                               kWordBytes ==
                           0;
    return (isAligned ? aligned : any).enqueue(buffers, args);
  });
}

PreparedCudaKernel grouped_matmul::tensor::prepare(const KernelRequest &r,
                                                   CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(
      const CudaLaunch aligned,
      prepareGrouped(r, r.constant("transpose_w") ? "tensor" : "tensor_back",
                     kTensorTile, context));
  QLORA_ASSIGN_OR_RETURN(const CudaLaunch any,
                         prepareGrouped(r, "bf16", kPlainTile, context));
  return groupedKernel(r, aligned, any, context);
}

PreparedCudaKernel grouped_matmul::cuda::prepare(const KernelRequest &r,
                                                 CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(const CudaLaunch product,
                         prepareGrouped(r, std::string(dtypeName(r.type("a"))),
                                        kPlainTile, context));
  return groupedKernel(r, product, product, context);
}

PreparedCudaKernel grouped_weight_grad::cuda::prepare(const KernelRequest &r,
                                                      CudaContext &context) {
  const int64_t numbers =
      r.constant("groups") * r.constant("rows") * r.constant("columns");
  return makeOpKernel(r, {"dy", "x"}, blocksOf(numbers, kThreads), context);
}

} // namespace qlora::cuda
