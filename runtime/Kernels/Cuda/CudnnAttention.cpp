// SPDX-License-Identifier: MIT

// attention and attention_grad by cuDNN, with what the op says of padding
// around its graph: a query of segment 0 has out = 0 and lse = 0, and gives no
// gradient, because the gradient's graph is told a huge lse for it.

#include "runtime/Kernels/Cuda/CudaKernels.h"
#include "runtime/Kernels/Cuda/CudnnAttentionGraph.h"
#include "runtime/Kernels/Requests/CudaWorkspaces.h"

namespace qlora {

namespace operand = cudnn_operand;
using requests::CudnnGradientPlan;

namespace {
/// A plan, with the values that it reads.
class PreparedPlan {
public:
  /// `dqSumBytes`: at the start of the workspace, where the graph names it.
  PreparedPlan(const CudnnHandle &cudnn, const KernelRequest &r,
               CudnnAttentionPlan plan, uint64_t dqSumBytes)
      : cudnn(cudnn), plan(std::move(plan)), dqSumBytes(dqSumBytes),
        isGradient(r.op->name == "attention_grad"),
        hasSegments(r.dtype("segments").has_value()),
        scale(static_cast<float>(r.constantAsDouble("scale"))),
        window(static_cast<float>(r.constant("window"))) {}

  /// `operands` is what the op has in memory; the rest is added.
  Status enqueue(std::vector<CudnnBinding> operands, void *segments,
                 void *workspace, CUstream stream);

private:
  const CudnnHandle &cudnn;
  CudnnAttentionPlan plan;
  uint64_t dqSumBytes;
  bool isGradient, hasSegments;
  float scale, window, one = 1;
  /// Of scores; not infinite, so that the maximum over keys that are all
  /// masked can be subtracted.
  float masked = -1e30f;
};
} // namespace

Status PreparedPlan::enqueue(std::vector<CudnnBinding> operands, void *segments,
                             void *workspace, CUstream stream) {
  if (isGradient && plan.dqSum == CudnnDqSum::kMemory) {
    operands.push_back({operand::kDqSum, workspace});
    workspace = movedBy(workspace, dqSumBytes);
  }
  if (hasSegments) {
    operands.push_back({operand::kQuerySegments, segments});
    operands.push_back({operand::kKeySegments, segments});
  }
  for (const CudnnBinding &binding : operands)
    if (reinterpret_cast<uintptr_t>(binding.address) % 16 != 0)
      return Status::error(StatusCode::kInternal,
                           "an operand of cuDNN's attention is not at a "
                           "multiple of 16 bytes");
  operands.push_back({operand::kScale, &scale});
  operands.push_back({operand::kMasked, &masked});
  if (window != 0)
    operands.push_back({operand::kWindow, &window});
  if (isGradient)
    operands.push_back({operand::kOne, &one});
  const cudnnStatus_t onStream = cudnn.library->setStream(cudnn.handle, stream);
  if (onStream != 0)
    return Status::error(StatusCode::kInternal, "cudnnSetStream: status {}",
                         onStream);
  return plan.plan.execute(cudnn.handle, operands, workspace);
}

/// The launch that treats the queries of segment 0.
static StatusOr<CudaLaunch> preparePadding(const KernelRequest &r,
                                           CudaContext &context,
                                           std::string_view symbol) {
  const int64_t rows =
      r.constant("batch") * r.constant("length") * r.constant("heads");
  return CudaLaunch::prepare(context, symbol, {blocksOf(rows, 256)},
                             r.constants);
}

PreparedCudaKernel cuda::attention::cudnn::prepare(const KernelRequest &r,
                                                   CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(const CudnnHandle *cudnn, context.cudnn());
  QLORA_ASSIGN_OR_RETURN(CudnnAttentionPlan plan,
                         planCudnnAttention({*cudnn->library, cudnn->handle},
                                            CudnnAttentionShape::of(r),
                                            requests::kCudnnForwardScratch));
  std::optional<CudaLaunch> padding;
  if (r.dtype("segments")) {
    QLORA_ASSIGN_OR_RETURN(
        padding, preparePadding(r, context, "qlora_attention_padding_out"));
  }
  auto prepared = std::make_shared<PreparedPlan>(*cudnn, r, std::move(plan), 0);
  return makeCudaKernel([=](const CudaKernelArgs &args) {
    const auto &b = args.buffers;
    QLORA_RETURN_IF_ERROR(prepared->enqueue({{operand::kQ, b[0]},
                                             {operand::kK, b[1]},
                                             {operand::kV, b[2]},
                                             {operand::kOut, b[4]},
                                             {operand::kLse, b[5]}},
                                            b[3], b[6], args.stream));
    return padding ? padding->enqueue(b, args) : Status::ok();
  });
}

// The gradient ----------------------------------------------------------------

PreparedCudaKernel cuda::attention_grad::cudnn::prepare(const KernelRequest &r,
                                                        CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(const CudnnHandle *cudnn, context.cudnn());
  const CudnnGradientPlan bytes = CudnnGradientPlan::of(r);
  QLORA_ASSIGN_OR_RETURN(
      CudnnAttentionPlan plan,
      planCudnnAttentionGradient({*cudnn->library, cudnn->handle},
                                 context.arch(), CudnnAttentionShape::of(r),
                                 bytes.scratch.bytes(), bytes.dqSum.bytes()));
  std::optional<CudaLaunch> padding;
  if (r.dtype("segments")) {
    QLORA_ASSIGN_OR_RETURN(
        padding, preparePadding(r, context, "qlora_attention_padding_lse"));
  }
  auto prepared = std::make_shared<PreparedPlan>(*cudnn, r, std::move(plan),
                                                 bytes.dqSum.bytes());
  return makeCudaKernel([=](const CudaKernelArgs &args) {
    const auto &b = args.buffers;
    void *lse = b[10];
    void *delta = movedBy(lse, bytes.lse.bytes());
    void *scratch = movedBy(delta, bytes.delta.bytes());
    if (padding)
      QLORA_RETURN_IF_ERROR(padding->enqueue(b, args));
    return prepared->enqueue({{operand::kQ, b[0]},
                              {operand::kK, b[1]},
                              {operand::kV, b[2]},
                              {operand::kOut, b[4]},
                              {operand::kLse, padding ? lse : b[5]},
                              {operand::kDout, b[6]},
                              {operand::kDq, b[7]},
                              {operand::kDk, b[8]},
                              {operand::kDv, b[9]},
                              {operand::kDelta, delta}},
                             b[3], scratch, args.stream);
  });
}

} // namespace qlora
