// SPDX-License-Identifier: MIT

// A matrix product as cuBLASLt sees it, and the algorithms that it has for
// one. cuBLASLt speaks of column-major matrices; ours are row-major, so it is
// asked for c^T = op(b)^T . op(a)^T, which needs no transposition in memory.
// f32 products are computed in f32 (no TF32), bf16 ones with f32 sums. There
// are no epilogues and no batches.
//
// Bits. An algorithm may split the depth k among blocks and add the parts up.
// Two of cuBLASLt's ways to do so are never used: "in place" adds parts to the
// result as they come, so that two runs may differ and every part is rounded
// to the type of c; "output type" keeps the order but rounds every part too.
// Left are no split, and parts in f32 that a second pass adds in one order.
// NVIDIA promises the same bits for those on cards of one architecture with
// as many multiprocessors, of one version of the library.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_GEMMALGORITHM_H
#define QLORA_RUNTIME_KERNELS_CUDA_GEMMALGORITHM_H

#include <array>
#include <compare>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/Device/Cuda/CudaApi.h"
#include "runtime/Kernels/Requests/CudaWorkspaces.h"

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

  static GemmSignature of(const requests::GemmProblem &problem,
                          uint32_t alignment, uint64_t scratchLimit);
  /// "512 x 64 x 4096 (m n k), bf16 to f32, b transposed, ...".
  std::string text() const;
  auto operator<=>(const GemmSignature &) const = default;
};

/// The attributes from which cuBLASLt makes an algorithm again, by the number
/// of cublasLtMatmulAlgoConfigAttributes_t. The first says which it is.
struct GemmConfiguration {
  static constexpr size_t kCount = 9;
  static constexpr std::array<const char *, kCount> kNames = {
      "id",      "tile",          "split_k", "reduction_scheme",
      "swizzle", "custom_option", "stages",  "inner_shape",
      "cluster_shape"};
  static constexpr std::array<size_t, kCount> kBytes = {4, 4, 4, 4, 4,
                                                        4, 4, 2, 2};
  std::array<uint32_t, kCount> values = {};

  /// Whether its sums have the same bits in every run, as said above.
  bool isReproducible() const;
  bool operator==(const GemmConfiguration &) const = default;
};

/// An algorithm that can run now.
struct GemmAlgorithm {
  cublasLtMatmulAlgo_t choice = {};
  uint64_t scratchBytes = 0;
  /// Nothing where cuBLASLt does not make this one again from its attributes.
  std::optional<GemmConfiguration> configuration;
};

/// cuBLASLt's descriptions of one product. The context's handle outlives all
/// calls, but need not outlive this.
class GemmDescription {
public:
  static StatusOr<std::shared_ptr<const GemmDescription>>
  create(CudaContext &context, const requests::GemmProblem &problem);
  ~GemmDescription();
  GemmDescription(const GemmDescription &) = delete;
  GemmDescription &operator=(const GemmDescription &) = delete;

  /// What cuBLASLt would choose, best first by its own estimate: at most
  /// `most` algorithms for the signature's alignment, within its workspace.
  /// Each was made again from its attributes, so that it is the very one that
  /// a table leads to. Where that works for none, its first choice as it is.
  StatusOr<std::vector<GemmAlgorithm>> candidates(const GemmSignature &wanted,
                                                  size_t most) const;

  /// The algorithm of these attributes; nothing where it is not reproducible,
  /// needs more workspace, or is none that cuBLASLt has for this product.
  StatusOr<std::optional<GemmAlgorithm>>
  restore(const GemmConfiguration &configuration, uint64_t scratchLimit) const;

  /// c := alpha * op(a) . op(b) + beta * c. kUnavailable where the algorithm
  /// cannot run after all.
  Status enqueue(const requests::GemmProblem &scalars, const void *a,
                 const void *b, void *c, const GemmAlgorithm &algorithm,
                 void *scratch, CUstream stream) const;

private:
  GemmDescription(const CublasLt &blas, cublasLtHandle_t handle)
      : blas(blas), handle(handle) {}
  Status describe(const requests::GemmProblem &problem);
  StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>>
  ask(const GemmSignature &wanted, size_t most) const;
  StatusOr<GemmConfiguration> read(const cublasLtMatmulAlgo_t &algorithm) const;

  const CublasLt &blas;
  cublasLtHandle_t handle;
  int type = 0, result = 0; ///< cudaDataType_t
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t layoutA = nullptr, layoutB = nullptr,
                         layoutC = nullptr;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_GEMMALGORITHM_H
