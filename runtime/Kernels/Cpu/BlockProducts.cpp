// SPDX-License-Identifier: MIT

// Prepares one GEMM per shape and slot.

#include "runtime/Kernels/Cpu/BlockProducts.h"

#include <algorithm>

#include "runtime/Kernels/Cpu/InstructionLimit.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora {

/// Returns the GEMM with these extents for dense bf16 operands.
static GemmProblem problemOf(const BlockForm &form,
                             const BlockExtents &extents) {
  const auto [m, n, k] = extents;
  return {m,
          n,
          k,
          form.transposeA ? m : k,
          form.transposeB ? k : n,
          n,
          form.transposeA,
          form.transposeB,
          QLORA_DTYPE_BF16,
          QLORA_DTYPE_BF16,
          QLORA_DTYPE_F32,
          form.alpha,
          form.beta};
}

std::shared_ptr<const BlockProducts>
BlockProducts::create(const std::vector<Request> &requests, qlora_dtype dtype,
                      int64_t slots, uint64_t scratchBytes) {
  limitInstructions();
  auto products = std::make_shared<BlockProducts>();
  if (dtype != QLORA_DTYPE_BF16)
    return products;
  const int64_t used = std::min(slots, threadCount());
  for (const Request &request : requests)
    if (!products->prepared
             .add(problemOf(request.form, request.extents), used, scratchBytes,
                  createGemmPrimitive)
             .isOk())
      return std::make_shared<BlockProducts>();
  products->type = QLORA_DTYPE_BF16;
  return products;
}

qlora_dtype BlockProducts::operandTypeOf(qlora_dtype dtype) {
  const Request smallest = {{}, {1, 1, 1}};
  constexpr uint64_t kAmple = uint64_t{1} << 20;
  return create({smallest}, dtype, 1, kAmple)->operandType();
}

Status BlockProducts::run(int64_t slot, const BlockForm &form,
                          const BlockExtents &extents, RowView a, RowView b,
                          float *c, int64_t ldc, void *scratch) const {
  GemmProblem problem = problemOf(form, extents);
  if (type == QLORA_DTYPE_F32) {
    problem.lda = a.ld;
    problem.ldb = b.ld;
    problem.ldc = ldc;
    return multiplyF32(problem, static_cast<const float *>(a.data),
                       static_cast<const float *>(b.data), c);
  }
  return prepared.find(problem, slot)
      .run(a.data, b.data, c, static_cast<uint8_t *>(scratch));
}

} // namespace qlora
