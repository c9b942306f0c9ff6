// SPDX-License-Identifier: MIT

// A matrix product as cuBLASLt sees it, and the algorithms that it has for
// one. cuBLASLt speaks of column-major matrices; ours are row-major, so it is
// asked for c^T = op(b)^T . op(a)^T, which needs no transposition in memory.
// f32 products are computed in f32 (no TF32), bf16 ones with f32 sums. There
// are no epilogues and no batches.
//
// Bits. An algorithm may split the depth k among blocks and add the parts up.
// Two of cuBLASLt's ways to do so are never used: "in place" adds them up in
// the result, so that every sum is rounded to the type of c; "output type"
// rounds every part to it. Left are no split, and parts in f32 that a separate
// step adds up. What is relied on, all of it documented by NVIDIA:
//
//   CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK "filters heuristic result to
//   only include algo configs that use one of the required modes". An
//   algorithm's scheme is read as well, and one that says another is not
//   used. Where cuBLASLt does not say it (the schemes are those of older
//   kernels; it may refuse to speak of newer ones), the mask alone is trusted:
//   to pass over such an algorithm would be to pass over a card's fastest.
//
//   "All cuBLAS API routines from a given toolkit version generate the same
//   bit-wise results at every run when executed on GPUs with the same
//   architecture and the same number of SMs", on several streams too if each
//   product is given a workspace of its own, as ours are.
//
// As bytes. cublasLtMatmulAlgo_t "can be trivially serialized and later
// restored for use with the same version of cuBLAS library to save on selecting
// the right configuration again". Its attributes do not say all of it (in 13.1
// they are half of the bytes), so one that is made from them need not be the
// one that was found. The bytes are only ever given back to the version that
// made them, and after cublasLtMatmulAlgoCheck; "if cublasLtMatmulAlgoCheck
// fails, the algo will not run", but a success "doesn't fully guarantee" that
// it runs, which is seen where it is measured.

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

/// All that the choice of an algorithm depends on.
struct GemmSignature {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  bool transposeA, transposeB;
  bool adds;             ///< to c: beta is not 0
  qlora_dtype type;      ///< of a and b
  qlora_dtype result;    ///< of c
  uint32_t alignment;    ///< of every operand, at least, in bytes
  uint64_t scratchLimit; ///< of cuBLASLt's workspace, in bytes

  static GemmSignature of(const plans::GemmProblem &problem, uint32_t alignment,
                          uint64_t scratchLimit);
  /// "512 x 64 x 4096 (m n k), bf16 to f32, b transposed, ...".
  std::string text() const;
  auto operator<=>(const GemmSignature &) const = default;
};

/// An algorithm that can run now.
struct GemmAlgorithm {
  cublasLtMatmulAlgo_t choice = {};
  uint64_t scratchBytes = 0;
  bool operator==(const GemmAlgorithm &) const = default;
};

/// cuBLASLt's descriptions of one product. The context's handle outlives all
/// calls, but need not outlive this.
class GemmDescription {
public:
  static StatusOr<std::shared_ptr<const GemmDescription>>
  create(CudaContext &context, const plans::GemmProblem &problem);
  ~GemmDescription();
  GemmDescription(const GemmDescription &) = delete;
  GemmDescription &operator=(const GemmDescription &) = delete;

  /// What cuBLASLt would choose, best first by its own estimate: at most
  /// `most` algorithms for the signature's alignment, within its workspace.
  /// Each can be restored, so that a table leads to the very same.
  StatusOr<std::vector<GemmAlgorithm>> candidates(const GemmSignature &wanted,
                                                  size_t most) const;

  /// The algorithm of these bytes; nothing where it is not reproducible, needs
  /// more workspace, or is none that cuBLASLt has for this product.
  StatusOr<std::optional<GemmAlgorithm>>
  restore(const cublasLtMatmulAlgo_t &bytes, uint64_t scratchLimit) const;

  /// c := alpha * op(a) . op(b) + beta * c. kUnavailable where the algorithm
  /// cannot run after all.
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
