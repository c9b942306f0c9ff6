// SPDX-License-Identifier: MIT

// One prepared product per shape and slot.

#include "runtime/Kernels/Cpu/BlockProducts.h"

#include <algorithm>
#include <cassert>

#include "runtime/Kernels/Cpu/InstructionLimit.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora {

/// Of dense bf16 rows.
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

Status BlockProducts::prepare(const Request &request, int64_t slots,
                              uint64_t scratchBytes) {
  Prepared product = {request, {}};
  QLORA_ASSIGN_OR_RETURN(
      product.slots, createForSlots(createGemmPrimitive,
                                    problemOf(request.form, request.extents),
                                    slots, scratchBytes));
  prepared.push_back(std::move(product));
  return Status::ok();
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
    if (!products->prepare(request, used, scratchBytes).isOk())
      return std::make_shared<BlockProducts>();
  products->type = QLORA_DTYPE_BF16;
  return products;
}

Status BlockProducts::run(int64_t slot, const BlockForm &form,
                          const BlockExtents &extents, RowView a, RowView b,
                          float *c, int64_t ldc, void *scratch) const {
  if (type == QLORA_DTYPE_F32) {
    GemmProblem problem = problemOf(form, extents);
    problem.lda = a.ld;
    problem.ldb = b.ld;
    problem.ldc = ldc;
    return multiplyF32(problem, static_cast<const float *>(a.data),
                       static_cast<const float *>(b.data), c);
  }
  const auto fits = [&](const Prepared &product) {
    return product.request.extents == extents && product.request.form == form;
  };
  const auto product = std::ranges::find_if(prepared, fits);
  assert(product != prepared.end() && "one of the requests");
  return product->slots[slot]->run(a.data, b.data, c,
                                   static_cast<uint8_t *>(scratch));
}

} // namespace qlora
