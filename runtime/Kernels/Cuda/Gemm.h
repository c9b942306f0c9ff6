// SPDX-License-Identifier: MIT

// GEMMs with cuBLASLt, prepared once. GemmAlgorithm.h describes algorithms.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_GEMM_H
#define QLORA_RUNTIME_KERNELS_CUDA_GEMM_H

#include "runtime/Kernels/Cuda/CudaKernel.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

namespace qlora {

/// A GEMM with a and b of one type. The context's GemmSelection chooses two
/// algorithms with at most `scratchBytes` of workspace: one for operands
/// aligned to GemmSelection::kAlignment bytes, and one for all other operands.
class CudaGemm {
public:
  /// Returns kUnavailable if cuBLASLt has no algorithm.
  static StatusOr<std::unique_ptr<CudaGemm>>
  create(CudaContext &context, const plans::GemmProblem &problem,
         uint64_t scratchBytes);

  Status enqueue(const void *a, const void *b, void *c, void *scratch,
                 CUstream stream) const;

private:
  CudaGemm() = default;

  plans::GemmProblem problem = {};
  const GemmChoice *aligned = nullptr, *any = nullptr;
};

/// A GEMM with operands of any types: a CudaGemm, and the conversions that the
/// types need. The plan describes the workspace.
class CudaProduct {
public:
  static StatusOr<std::unique_ptr<CudaProduct>>
  create(CudaContext &context, const plans::GemmProblem &problem,
         const plans::CudaGemmPlan &plan);

  Status enqueue(const void *a, const void *b, void *c, void *workspace,
                 const CudaKernelArgs &args) const;

private:
  plans::CudaGemmPlan plan;
  std::unique_ptr<CudaGemm> gemm;
  std::optional<CudaLaunch> convertA, convertB, readC, writeC;
};

namespace cuda {
/// Prepares the decode of a stored weight to type `out`; floating-point weights
/// are converted. The launch takes the buffers (w, out). The request must have
/// the operand w and the constants rows, columns, block and double_quant.
StatusOr<CudaLaunch> prepareDecode(const KernelRequest &request,
                                   qlora_dtype out, CudaContext &context);
} // namespace cuda

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_GEMM_H
