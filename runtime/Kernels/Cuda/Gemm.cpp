// SPDX-License-Identifier: MIT

// cuBLASLt's descriptions of a product, and its choice of an algorithm.

#include "runtime/Kernels/Cuda/Gemm.h"

namespace qlora {

using requests::CudaGemmPlan;
using requests::GemmProblem;

static constexpr uint32_t kAlignment = 16;

static int cublasType(qlora_dtype dtype) {
  return dtype == QLORA_DTYPE_BF16 ? kCudaR16BF : kCudaR32F;
}

/// A row-major [rows, columns] is a column-major [columns, rows].
static Status describeMatrix(const CublasLt &blas, qlora_dtype dtype,
                             int64_t rows, int64_t columns, int64_t ld,
                             CublasObject<cublasLtMatrixLayout_t> &layout) {
  return blas.check(
      blas.matrixLayoutCreate(layout.receive(blas.matrixLayoutDestroy),
                              cublasType(dtype), uint64_t(columns),
                              uint64_t(rows), ld),
      "cublasLtMatrixLayoutCreate");
}

Status CudaGemm::describe(const GemmProblem &p) {
  const CublasLt &blas = context.blas();
  QLORA_RETURN_IF_ERROR(blas.check(
      blas.matmulDescCreate(description.receive(blas.matmulDescDestroy),
                            kCublasCompute32F, kCudaR32F),
      "cublasLtMatmulDescCreate"));
  // cuBLASLt's A is our b.
  const std::pair<int, bool> sides[] = {{kCublasDescTransposeA, p.transposeB},
                                        {kCublasDescTransposeB, p.transposeA}};
  for (const auto &[attribute, isTransposed] : sides) {
    const int32_t operation = isTransposed ? kCublasOpT : kCublasOpN;
    QLORA_RETURN_IF_ERROR(
        blas.check(blas.matmulDescSetAttribute(description.get(), attribute,
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

Status CudaGemm::find(uint32_t alignment, uint64_t scratchBytes,
                      Algorithm &algorithm) {
  const CublasLt &blas = context.blas();
  CublasObject<cublasLtMatmulPreference_t> preference;
  QLORA_RETURN_IF_ERROR(blas.check(
      blas.preferenceCreate(preference.receive(blas.preferenceDestroy)),
      "cublasLtMatmulPreferenceCreate"));
  QLORA_RETURN_IF_ERROR(blas.check(
      blas.preferenceSetAttribute(preference.get(),
                                  kCublasPreferenceMaxWorkspace, &scratchBytes,
                                  sizeof(scratchBytes)),
      "cublasLtMatmulPreferenceSetAttribute"));
  for (int matrix = 0; matrix < 4; ++matrix)
    QLORA_RETURN_IF_ERROR(blas.check(
        blas.preferenceSetAttribute(preference.get(),
                                    kCublasPreferenceMinAlignmentA + matrix,
                                    &alignment, sizeof(alignment)),
        "cublasLtMatmulPreferenceSetAttribute"));
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  const cublasStatus_t status = blas.algoGetHeuristic(
      context.blasHandle(), description.get(), layoutA.get(), layoutB.get(),
      layoutC.get(), layoutC.get(), preference.get(), 1, &result, &found);
  if (status != 0 || found == 0 || result.state != 0)
    return blas.check(status, "cublasLtMatmulAlgoGetHeuristic");
  algorithm = {result.algo, result.workspaceSize, true};
  return Status::ok();
}

StatusOr<std::unique_ptr<CudaGemm>> CudaGemm::create(CudaContext &context,
                                                     const GemmProblem &problem,
                                                     uint64_t scratchBytes) {
  std::unique_ptr<CudaGemm> gemm(new CudaGemm(context));
  gemm->problem = problem;
  QLORA_RETURN_IF_ERROR(gemm->describe(problem));
  QLORA_RETURN_IF_ERROR(gemm->find(kAlignment, scratchBytes, gemm->aligned));
  if (!gemm->aligned.exists)
    return Status::error(StatusCode::kUnavailable,
                         "cuBLASLt has no algorithm for {} x {} x {} in {} to "
                         "{} within {} bytes of workspace",
                         problem.m, problem.n, problem.k, dtypeName(problem.a),
                         dtypeName(problem.c), scratchBytes);
  QLORA_RETURN_IF_ERROR(
      gemm->find(dtypeBits(problem.a) / 8, scratchBytes, gemm->any));
  return gemm;
}

Status CudaGemm::enqueue(const void *a, const void *b, void *c, void *scratch,
                         CUstream stream) const {
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(a) |
                              reinterpret_cast<uintptr_t>(b) |
                              reinterpret_cast<uintptr_t>(c);
  const Algorithm &algorithm = addresses % kAlignment == 0 ? aligned : any;
  if (!algorithm.exists)
    return Status::error(StatusCode::kInternal,
                         "cuBLASLt has no algorithm for a product {} x {} x {} "
                         "of operands that are not at multiples of {} bytes",
                         problem.m, problem.n, problem.k, kAlignment);
  const CublasLt &blas = context.blas();
  return blas.check(blas.matmul(context.blasHandle(), description.get(),
                                &problem.alpha, b, layoutA.get(), a,
                                layoutB.get(), &problem.beta, c, layoutC.get(),
                                c, layoutC.get(), &algorithm.choice, scratch,
                                algorithm.scratchBytes, stream),
                    "cublasLtMatmul");
}

// Products of operands of any types
// ---------------------------------------------

StatusOr<std::unique_ptr<CudaProduct>>
CudaProduct::create(CudaContext &context, const GemmProblem &p) {
  auto product = std::make_unique<CudaProduct>();
  product->plan = CudaGemmPlan::of(p);
  const GemmProblem &inner = product->plan.product;
  QLORA_ASSIGN_OR_RETURN(
      product->gemm,
      CudaGemm::create(context, inner, product->plan.scratch.bytes()));
  const int64_t aRows = p.transposeA ? p.k : p.m;
  const int64_t aColumns = p.transposeA ? p.m : p.k;
  const int64_t bRows = p.transposeB ? p.n : p.k;
  const int64_t bColumns = p.transposeB ? p.k : p.n;
  if (p.a != inner.a) {
    QLORA_ASSIGN_OR_RETURN(
        product->convertA,
        CudaConversion::prepare(context, p.a, inner.a,
                                {aRows, aColumns, p.lda, inner.lda}));
  }
  if (p.b != inner.b) {
    QLORA_ASSIGN_OR_RETURN(
        product->convertB,
        CudaConversion::prepare(context, p.b, inner.b,
                                {bRows, bColumns, p.ldb, inner.ldb}));
  }
  if (p.c == inner.c)
    return product;
  if (p.beta != 0) {
    QLORA_ASSIGN_OR_RETURN(
        product->readC, CudaConversion::prepare(context, p.c, inner.c,
                                                {p.m, p.n, p.ldc, inner.ldc}));
  }
  QLORA_ASSIGN_OR_RETURN(product->writeC,
                         CudaConversion::prepare(context, inner.c, p.c,
                                                 {p.m, p.n, inner.ldc, p.ldc}));
  return product;
}

Status CudaProduct::enqueue(const void *a, const void *b, void *c,
                            void *workspace, const CudaKernelArgs &args) const {
  void *copyA = workspace;
  void *copyB = movedBy(copyA, plan.a.bytes());
  void *copyC = movedBy(copyB, plan.b.bytes());
  void *scratch = movedBy(copyC, plan.c.bytes());
  if (convertA)
    QLORA_RETURN_IF_ERROR(convertA->enqueue(a, copyA, args));
  if (convertB)
    QLORA_RETURN_IF_ERROR(convertB->enqueue(b, copyB, args));
  if (readC)
    QLORA_RETURN_IF_ERROR(readC->enqueue(c, copyC, args));
  QLORA_RETURN_IF_ERROR(gemm->enqueue(convertA ? copyA : a,
                                      convertB ? copyB : b, writeC ? copyC : c,
                                      scratch, args.stream));
  return writeC ? writeC->enqueue(copyC, c, args) : Status::ok();
}

} // namespace qlora
