// SPDX-License-Identifier: MIT

// Matrix products by cuBLASLt, prepared once for a shape; how it is asked, and
// which of its algorithms may be used, is in GemmAlgorithm.h.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_GEMM_H
#define QLORA_RUNTIME_KERNELS_CUDA_GEMM_H

#include "runtime/Kernels/Cuda/CudaKernel.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

namespace qlora {

/// One product of operands of one type. The algorithm is the context's choice
/// for this signature within `scratchBytes`: one for operands at multiples of
/// GemmSelection::kAlignment bytes, another where an address is not.
class CudaGemm {
public:
  /// kUnavailable where cuBLASLt knows no algorithm.
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

/// A product of operands of any types: conversions around a CudaGemm, with
/// the parts of a workspace that its plan says.
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
/// A stored weight to numbers of `out`: a launch with the buffers (w, out), for
/// a request with the operand w and its constants rows, columns, block and
/// double_quant. NF4 is decoded, the other types are converted.
StatusOr<CudaLaunch> prepareDecode(const KernelRequest &request,
                                   qlora_dtype out, CudaContext &context);
} // namespace cuda

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_GEMM_H
