// SPDX-License-Identifier: MIT

// Matrix products by cuBLASLt, prepared once for a shape. cuBLASLt speaks of
// column-major matrices; ours are row-major, so it is asked for
// c^T = op(b)^T . op(a)^T, which needs no transposition in memory. f32
// products are computed in f32 (no TF32), bf16 ones with f32 sums.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_GEMM_H
#define QLORA_RUNTIME_KERNELS_CUDA_GEMM_H

#include "runtime/Kernels/Cuda/CudaKernels.h"
#include "runtime/Kernels/Requests/CudaWorkspaces.h"

namespace qlora {

/// A handle of cuBLASLt that is destroyed with it.
template <typename Handle> class CublasObject {
public:
  CublasObject() = default;
  CublasObject(CublasObject &&other) noexcept { *this = std::move(other); }
  CublasObject &operator=(CublasObject &&other) noexcept {
    std::swap(handle, other.handle);
    std::swap(destroy, other.destroy);
    return *this;
  }
  ~CublasObject() {
    if (handle)
      destroy(handle);
  }
  /// Where a create function puts the handle that `destroyer` ends.
  Handle *receive(cublasStatus_t (*destroyer)(Handle)) {
    destroy = destroyer;
    return &handle;
  }
  Handle get() const { return handle; }

private:
  Handle handle = nullptr;
  cublasStatus_t (*destroy)(Handle) = nullptr;
};

/// One product of operands of one type. The algorithm is cuBLASLt's first
/// choice within `scratchBytes`, for operands at multiples of 16 bytes, and
/// another where an address is not.
class CudaGemm {
public:
  /// kUnavailable where cuBLASLt knows no algorithm.
  static StatusOr<std::unique_ptr<CudaGemm>>
  create(CudaContext &context, const requests::GemmProblem &problem,
         uint64_t scratchBytes);

  Status enqueue(const void *a, const void *b, void *c, void *scratch,
                 CUstream stream) const;

private:
  struct Algorithm {
    cublasLtMatmulAlgo_t choice = {};
    uint64_t scratchBytes = 0;
    bool exists = false;
  };

  explicit CudaGemm(CudaContext &context) : context(context) {}
  Status describe(const requests::GemmProblem &problem);
  Status find(uint32_t alignment, uint64_t scratchBytes, Algorithm &algorithm);

  CudaContext &context;
  requests::GemmProblem problem = {};
  CublasObject<cublasLtMatmulDesc_t> description;
  CublasObject<cublasLtMatrixLayout_t> layoutA, layoutB, layoutC;
  Algorithm aligned, any;
};

/// A product of operands of any types: conversions around a CudaGemm, with
/// the workspace of its plan.
class CudaProduct {
public:
  static StatusOr<std::unique_ptr<CudaProduct>>
  create(CudaContext &context, const requests::GemmProblem &problem);

  Status enqueue(const void *a, const void *b, void *c, void *workspace,
                 const CudaKernelArgs &args) const;

private:
  requests::CudaGemmPlan plan;
  std::unique_ptr<CudaGemm> gemm;
  std::optional<CudaConversion> convertA, convertB, readC, writeC;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_GEMM_H
