// SPDX-License-Identifier: MIT

// Creates cuBLASLt's descriptors of a GEMM; lists and restores algorithms.

#include "runtime/Kernels/Cuda/GemmAlgorithm.h"

#include "runtime/Kernels/Cuda/CudaKernel.h"

namespace qlora {

using plans::GemmProblem;

/// Number of additional algorithms to request, because some may be unusable.
static constexpr size_t kSpare = 8;

static int cublasType(qlora_dtype dtype) {
  return dtype == QLORA_DTYPE_BF16 ? kCudaR16BF : kCudaR32F;
}

GemmSignature GemmSignature::of(const GemmProblem &p, uint32_t alignment,
                                uint64_t scratchLimit) {
  return {p.m, p.n,         p.k,          p.lda,         p.ldb,
          p.ldc, p.transposeA, p.transposeB, p.beta != 0,  p.a,
          p.c, alignment,   scratchLimit};
}

std::string GemmSignature::text() const {
  return fmt::format("{} x {} x {} (m n k), {} to {}{}{}{}, rows of {} {} {}, "
                     "aligned to {} bytes, within {} bytes of workspace",
                     m, n, k, dtypeName(type), dtypeName(result),
                     transposeA ? ", a transposed" : "",
                     transposeB ? ", b transposed" : "", adds ? ", added" : "",
                     lda, ldb, ldc, alignment, scratchLimit);
}

// Descriptions ----------------------------------------------------------------

/// Describes a row-major [rows, columns] matrix to cuBLASLt, as a column-major
/// [columns, rows] matrix.
static Status describeMatrix(const CublasLt &blas, qlora_dtype dtype,
                             int64_t rows, int64_t columns, int64_t ld,
                             cublasLtMatrixLayout_t &layout) {
  return blas.check(blas.matrixLayoutCreate(&layout, cublasType(dtype),
                                            uint64_t(columns), uint64_t(rows),
                                            ld),
                    "cublasLtMatrixLayoutCreate");
}

Status GemmDescription::describe(const GemmProblem &p) {
  QLORA_RETURN_IF_ERROR(blas.check(
      blas.matmulDescCreate(&description, kCublasCompute32F, kCudaR32F),
      "cublasLtMatmulDescCreate"));
  // cuBLASLt's A is this project's b.
  const std::pair<int, bool> sides[] = {{kCublasDescTransposeA, p.transposeB},
                                        {kCublasDescTransposeB, p.transposeA}};
  for (const auto &[attribute, isTransposed] : sides) {
    const int32_t operation = isTransposed ? kCublasOpT : kCublasOpN;
    QLORA_RETURN_IF_ERROR(
        blas.check(blas.matmulDescSetAttribute(description, attribute,
                                               &operation, sizeof(operation)),
                   "cublasLtMatmulDescSetAttribute"));
  }
  QLORA_RETURN_IF_ERROR(describeMatrix(blas, p.b, p.transposeB ? p.n : p.k,
                                       p.transposeB ? p.k : p.n, p.ldb,
                                       layoutA));
  QLORA_RETURN_IF_ERROR(describeMatrix(blas, p.a, p.transposeA ? p.k : p.m,
                                       p.transposeA ? p.m : p.k, p.lda,
                                       layoutB));
  return describeMatrix(blas, p.c, p.m, p.n, p.ldc, layoutC);
}

StatusOr<std::shared_ptr<const GemmDescription>>
GemmDescription::create(CudaContext &context, const GemmProblem &problem) {
  std::shared_ptr<GemmDescription> made(
      new GemmDescription(context.blas(), context.blasHandle()));
  QLORA_RETURN_IF_ERROR(made->describe(problem));
  return std::shared_ptr<const GemmDescription>(std::move(made));
}

GemmDescription::~GemmDescription() {
  for (const cublasLtMatrixLayout_t layout : {layoutA, layoutB, layoutC})
    if (layout)
      (void)blas.matrixLayoutDestroy(layout);
  if (description)
    (void)blas.matmulDescDestroy(description);
}

// Algorithms ------------------------------------------------------------------

namespace {
/// Constraints for cuBLASLt's heuristic.
class Preference {
public:
  explicit Preference(const CublasLt &blas) : blas(blas) {}
  ~Preference() {
    if (handle)
      (void)blas.preferenceDestroy(handle);
  }
  Status create(const GemmSignature &wanted);
  cublasLtMatmulPreference_t get() const { return handle; }

private:
  template <typename T> Status set(int attribute, const T &value) {
    return blas.check(
        blas.preferenceSetAttribute(handle, attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
  }

  const CublasLt &blas;
  cublasLtMatmulPreference_t handle = nullptr;
};
} // namespace

Status Preference::create(const GemmSignature &wanted) {
  QLORA_RETURN_IF_ERROR(blas.check(blas.preferenceCreate(&handle),
                                   "cublasLtMatmulPreferenceCreate"));
  QLORA_RETURN_IF_ERROR(
      set(kCublasPreferenceMaxWorkspace, wanted.scratchLimit));
  QLORA_RETURN_IF_ERROR(
      set(kCublasPreferenceReductionMask, kCublasReductionComputeType));
  for (int matrix = 0; matrix < 4; ++matrix)
    QLORA_RETURN_IF_ERROR(
        set(kCublasPreferenceMinAlignmentA + matrix, wanted.alignment));
  return Status::ok();
}

StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>>
GemmDescription::ask(const GemmSignature &wanted, size_t most) const {
  Preference preference(blas);
  QLORA_RETURN_IF_ERROR(preference.create(wanted));
  std::vector<cublasLtMatmulHeuristicResult_t> results(most);
  int found = 0;
  const cublasStatus_t status = blas.algoGetHeuristic(
      handle, description, layoutA, layoutB, layoutC, layoutC,
      preference.get(), int(most), results.data(), &found);
  if (status == kCublasNotSupported)
    found = 0;
  else
    QLORA_RETURN_IF_ERROR(blas.check(status, "cublasLtMatmulAlgoGetHeuristic"));
  results.resize(size_t(found));
  std::erase_if(results, [&](const cublasLtMatmulHeuristicResult_t &each) {
    return each.state != 0 || each.workspaceSize > wanted.scratchLimit;
  });
  return results;
}

/// Whether the status means that this GPU lacks the algorithm for this GEMM.
static bool isRefusal(cublasStatus_t status) {
  return status == kCublasInvalidValue || status == kCublasArchMismatch ||
         status == kCublasNotSupported;
}

/// Checks the reduction scheme that an algorithm reports. Without a report,
/// relies on the heuristic's mask (GemmAlgorithm.h).
StatusOr<bool> GemmDescription::isReproducible(
    const cublasLtMatmulAlgo_t &algorithm) const {
  uint32_t scheme = kCublasReductionNone;
  size_t written = 0;
  const cublasStatus_t status = blas.algoConfigGet(
      &algorithm, kCublasConfigReduction, &scheme, sizeof(scheme), &written);
  if (isRefusal(status))
    return true;
  QLORA_RETURN_IF_ERROR(
      blas.check(status, "cublasLtMatmulAlgoConfigGetAttribute"));
  return scheme == kCublasReductionNone ||
         scheme == kCublasReductionComputeType;
}

StatusOr<std::vector<GemmAlgorithm>>
GemmDescription::candidates(const GemmSignature &wanted, size_t most) const {
  QLORA_ASSIGN_OR_RETURN(const auto results, ask(wanted, most + kSpare));
  std::vector<GemmAlgorithm> found;
  for (const cublasLtMatmulHeuristicResult_t &each : results) {
    if (found.size() == most)
      break;
    QLORA_ASSIGN_OR_RETURN(const auto restored,
                           restore(each.algo, wanted.scratchLimit));
    if (restored)
      found.push_back(*restored);
  }
  return found;
}

StatusOr<std::optional<GemmAlgorithm>>
GemmDescription::restore(const cublasLtMatmulAlgo_t &bytes,
                         uint64_t scratchLimit) const {
  std::optional<GemmAlgorithm> none;
  QLORA_ASSIGN_OR_RETURN(const bool isUsable, isReproducible(bytes));
  if (!isUsable)
    return none;
  cublasLtMatmulHeuristicResult_t checked = {};
  const cublasStatus_t status =
      blas.algoCheck(handle, description, layoutA, layoutB, layoutC, layoutC,
                     &bytes, &checked);
  if (isRefusal(status))
    return none;
  QLORA_RETURN_IF_ERROR(blas.check(status, "cublasLtMatmulAlgoCheck"));
  if (checked.state != 0 || checked.workspaceSize > scratchLimit)
    return none;
  return std::optional(GemmAlgorithm{bytes, checked.workspaceSize});
}

Status GemmDescription::enqueue(const GemmProblem &scalars, const void *a,
                                const void *b, void *c,
                                const GemmAlgorithm &algorithm, void *scratch,
                                CUstream stream) const {
  return blas.check(blas.matmul(handle, description, &scalars.alpha, b, layoutA,
                                a, layoutB, &scalars.beta, c, layoutC, c,
                                layoutC, &algorithm.choice, scratch,
                                algorithm.scratchBytes, stream),
                    "cublasLtMatmul");
}

} // namespace qlora
