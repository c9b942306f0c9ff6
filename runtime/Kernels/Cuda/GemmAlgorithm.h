// SPDX-License-Identifier: MIT

// A GEMM as cuBLASLt describes it, and its algorithms. cuBLASLt's matrices are
// column-major, this project's are row-major. So cuBLASLt computes c^T =
// op(b)^T . op(a)^T, which needs no transposition in memory. f32 GEMMs compute
// in f32 (no TF32), bf16 GEMMs with f32 sums. No epilogues, no batches.
//
// Reproducibility. An algorithm may split the depth k over blocks and add the
// partial results. Two of cuBLASLt's schemes are never used: "in place" adds in
// c, which rounds every sum to c's type; "output type" rounds partial results
// to c's type. Only f32 partial results that a separate step adds are allowed.
// This relies on NVIDIA's documentation:
//
//   CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK "filters heuristic result to
//   only include algo configs that use one of the required modes". The scheme
//   that an algorithm reports is checked too. If cuBLASLt reports none (as may
//   happen for newer kernels), only the mask is used: refusing such algorithms
//   would exclude the fastest ones of a GPU.
//
//   "All cuBLAS API routines from a given toolkit version generate the same
//   bit-wise results at every run when executed on GPUs with the same
//   architecture and the same number of SMs", also on several streams if each
//   GEMM has its own workspace, as here.
//
// Serialization. cublasLtMatmulAlgo_t "can be trivially serialized and later
// restored for use with the same version of cuBLAS library to save on selecting
// the right configuration again". The attributes of an algorithm cannot rebuild
// it: in cuBLASLt 13.1, they cover only half of its bytes. So the bytes are
// stored. They are restored only with the cuBLAS version that made them, and
// after cublasLtMatmulAlgoCheck. If this check "fails, the algo will not run",
// but success "doesn't fully guarantee" that it runs; only a run can.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_GEMMALGORITHM_H
#define QLORA_RUNTIME_KERNELS_CUDA_GEMMALGORITHM_H

#include <compare>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/Kernels/Cuda/CudaApi.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

namespace qlora {

class CudaContext;

/// The properties of a GEMM that its choice of algorithm depends on.
struct GemmSignature {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  bool transposeA, transposeB;
  bool adds;             ///< beta is not 0
  qlora_dtype type;      ///< type of a and b
  qlora_dtype result;    ///< type of c
  uint32_t alignment;    ///< minimum for all operands, in bytes
  uint64_t scratchLimit; ///< limit of cuBLASLt's workspace, in bytes

  static GemmSignature of(const plans::GemmProblem &problem, uint32_t alignment,
                          uint64_t scratchLimit);
  /// Returns "512 x 64 x 4096 (m n k), bf16 to f32, b transposed, ...".
  std::string text() const;
  auto operator<=>(const GemmSignature &) const = default;
};

/// An algorithm that passed cuBLASLt's check.
struct GemmAlgorithm {
  cublasLtMatmulAlgo_t choice = {};
  uint64_t scratchBytes = 0;
  bool operator==(const GemmAlgorithm &) const = default;
};

/// cuBLASLt's descriptors of one GEMM. The context's handle must be valid
/// during all calls; it may be destroyed before this object.
class GemmDescription {
public:
  static StatusOr<std::shared_ptr<const GemmDescription>>
  create(CudaContext &context, const plans::GemmProblem &problem);
  ~GemmDescription();
  GemmDescription(const GemmDescription &) = delete;
  GemmDescription &operator=(const GemmDescription &) = delete;

  /// Returns up to `most` algorithms for the signature's alignment and scratch
  /// limit, best first by cuBLASLt's estimate. restore() accepts the bytes of
  /// each algorithm, so a GemmTable can store them.
  StatusOr<std::vector<GemmAlgorithm>> candidates(const GemmSignature &wanted,
                                                  size_t most) const;

  /// Restores an algorithm from `bytes`. Returns std::nullopt if it is not
  /// reproducible, exceeds `scratchLimit`, or cuBLASLt lacks it for this GEMM.
  StatusOr<std::optional<GemmAlgorithm>>
  restore(const cublasLtMatmulAlgo_t &bytes, uint64_t scratchLimit) const;

  /// Enqueues c := alpha * op(a) . op(b) + beta * c. Returns kUnavailable if
  /// the algorithm cannot run despite the check.
  Status enqueue(const plans::GemmProblem &scalars, const void *a,
                 const void *b, void *c, const GemmAlgorithm &algorithm,
                 void *scratch, CUstream stream) const;

private:
  GemmDescription(const CublasLt &blas, cublasLtHandle_t handle)
      : blas(blas), handle(handle) {}
  Status describe(const plans::GemmProblem &problem);
  StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>>
  ask(const GemmSignature &wanted, size_t most) const;
  StatusOr<bool> isReproducible(const cublasLtMatmulAlgo_t &algorithm) const;

  const CublasLt &blas;
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t layoutA = nullptr, layoutB = nullptr,
                         layoutC = nullptr;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_GEMMALGORITHM_H
