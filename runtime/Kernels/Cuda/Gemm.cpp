// SPDX-License-Identifier: MIT

// Enqueues GEMMs, and the conversions of their operands.

#include "runtime/Kernels/Cuda/Gemm.h"

namespace qlora {

using plans::CudaGemmPlan;
using plans::GemmProblem;

StatusOr<std::unique_ptr<CudaGemm>> CudaGemm::create(CudaContext &context,
                                                     const GemmProblem &problem,
                                                     uint64_t scratchBytes) {
  std::unique_ptr<CudaGemm> gemm(new CudaGemm);
  gemm->problem = problem;
  QLORA_ASSIGN_OR_RETURN(const auto description,
                         GemmDescription::create(context, problem));
  const auto choose = [&](uint32_t alignment) {
    return context.gemms.choose(
        GemmSignature::of(problem, alignment, scratchBytes), description);
  };
  QLORA_ASSIGN_OR_RETURN(gemm->aligned, choose(GemmSelection::kAlignment));
  if (!gemm->aligned->algorithm)
    return Status::unavailable(
        "cuBLASLt has no algorithm for {} x {} x {} in {} to "
        "{} within {} bytes of workspace",
        problem.m, problem.n, problem.k, dtypeName(problem.a),
        dtypeName(problem.c), scratchBytes);
  QLORA_ASSIGN_OR_RETURN(gemm->any, choose(dtypeBits(problem.a) / 8));
  return gemm;
}

Status CudaGemm::enqueue(const void *a, const void *b, void *c, void *scratch,
                         CUstream stream) const {
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(a) |
                              reinterpret_cast<uintptr_t>(b) |
                              reinterpret_cast<uintptr_t>(c);
  const bool isAligned = addresses % GemmSelection::kAlignment == 0;
  const GemmChoice &choice = isAligned ? *aligned : *any;
  if (!choice.algorithm)
    return Status::error(StatusCode::kInternal,
                         "cuBLASLt has no algorithm for a GEMM of {} x {} x {} "
                         "with operands not aligned to {} bytes",
                         problem.m, problem.n, problem.k,
                         GemmSelection::kAlignment);
  return choice.description->enqueue(problem, a, b, c, *choice.algorithm,
                                     scratch, stream);
}

// GEMMs with operands of any types -------------------------------------------

StatusOr<std::unique_ptr<CudaProduct>>
CudaProduct::create(CudaContext &context, const GemmProblem &p,
                    const CudaGemmPlan &plan) {
  auto product = std::make_unique<CudaProduct>();
  product->plan = plan;
  const GemmProblem &inner = product->plan.product;
  QLORA_ASSIGN_OR_RETURN(
      product->gemm,
      CudaGemm::create(context, inner, product->plan.scratch.bytes));
  const int64_t aRows = p.transposeA ? p.k : p.m;
  const int64_t aColumns = p.transposeA ? p.m : p.k;
  const int64_t bRows = p.transposeB ? p.n : p.k;
  const int64_t bColumns = p.transposeB ? p.k : p.n;
  const auto convert = [&](std::optional<CudaLaunch> &conversion,
                           qlora_dtype from, qlora_dtype to,
                           ConversionShape shape) -> Status {
    if (from != to) {
      QLORA_ASSIGN_OR_RETURN(conversion,
                             prepareConversion(context, from, to, shape));
    }
    return Status::ok();
  };
  QLORA_RETURN_IF_ERROR(convert(product->convertA, p.a, inner.a,
                                {aRows, aColumns, p.lda, inner.lda}));
  QLORA_RETURN_IF_ERROR(convert(product->convertB, p.b, inner.b,
                                {bRows, bColumns, p.ldb, inner.ldb}));
  if (p.beta != 0)
    QLORA_RETURN_IF_ERROR(convert(product->readC, p.c, inner.c,
                                  {p.m, p.n, p.ldc, inner.ldc}));
  QLORA_RETURN_IF_ERROR(convert(product->writeC, inner.c, p.c,
                                {p.m, p.n, inner.ldc, p.ldc}));
  return product;
}

Status CudaProduct::enqueue(const void *a, const void *b, void *c,
                            void *workspace, const CudaKernelArgs &args) const {
  void *const copyA = plan.a.in(workspace);
  void *const copyB = plan.b.in(workspace);
  void *const copyC = plan.c.in(workspace);
  if (convertA)
    QLORA_RETURN_IF_ERROR(convertA->enqueue(a, copyA, args));
  if (convertB)
    QLORA_RETURN_IF_ERROR(convertB->enqueue(b, copyB, args));
  if (readC)
    QLORA_RETURN_IF_ERROR(readC->enqueue(c, copyC, args));
  QLORA_RETURN_IF_ERROR(gemm->enqueue(convertA ? copyA : a,
                                      convertB ? copyB : b, writeC ? copyC : c,
                                      plan.scratch.in(workspace), args.stream));
  return writeC ? writeC->enqueue(copyC, c, args) : Status::ok();
}

} // namespace qlora
