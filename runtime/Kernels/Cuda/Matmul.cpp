// SPDX-License-Identifier: MIT

// matmul, panel_matmul and decode.

#include <bit>

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/Gemm.h"
#include "runtime/Kernels/Math/Stored.h"

namespace qlora::cuda {

PreparedCudaKernel matmul::cublaslt::prepare(const KernelRequest &r,
                                             CudaContext &context) {
  const plans::GemmProblem problem = plans::matmulProblem(r);
  QLORA_ASSIGN_OR_RETURN(
      std::shared_ptr<CudaProduct> product,
      CudaProduct::create(context, problem, plans::CudaGemmPlan::of(problem)));
  return makeCudaKernel([product](const CudaKernelArgs &args) {
    return product->enqueue(args.buffers[0], args.buffers[1], args.buffers[2],
                            args.buffers[3], args);
  });
}

// decode
// ------------------------------------------------------------------------

/// Elements of a block of Device/Decode.cu.
static constexpr int64_t kDecodeElements = 8 * 2 * 1024;

StatusOr<CudaLaunch> prepareDecode(const KernelRequest &r, qlora_dtype out,
                                   CudaContext &context) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const qlora_dtype stored = r.type("w");
  if (!storedFormat(stored))
    return prepareConversion(context, stored, out,
                             {rows, columns, columns, columns});
  const int64_t block = r.constant("block");
  const bool isDouble = r.constant("double_quant") != 0;
  const StoredLayout layout = 
      StoredLayout::of(stored, rows * columns, block, isDouble);
  // select-kernels and the check of a module take powers of two and rows only:
  // a row has one scale, and no bit of a column's number shifts to another.
  const bool isPower = std::has_single_bit(static_cast<uint64_t>(block));
  constexpr int64_t kBeyondColumns = 62;
  const int64_t constants[] = {rows * columns,
                               columns,
                               isPower ? std::countr_zero(static_cast<uint64_t>(block))
                                       : kBeyondColumns,
                               isDouble,
                               layout.scales,
                               layout.nestedAbsmax,
                               layout.nestedMap,
                               layout.codeBook,
                               layout.correction,
                               !isPower || hasRowScales(columns, block)
                                   ? columns / block
                                   : -1};
  return CudaLaunch::prepare(context,
                             fmt::format("qlora_decode_{}bit_{}", layout.bits, dtypeName(out)),
                             {blocksOf(rows * columns, kDecodeElements)},
                             constants);
}

PreparedCudaKernel decode::cuda::prepare(const KernelRequest &r,
                                         CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(const CudaLaunch decode,
                         prepareDecode(r, r.type("out"), context));
  return makeCudaKernel([decode](const CudaKernelArgs &args) {
    return decode.enqueue(args.buffers, args);
  });
}

PreparedCudaKernel panel_matmul::decoded::prepare(const KernelRequest &r,
                                                  CudaContext &context) {
  const plans::CudaPanelPlan plan = plans::CudaPanelPlan::of(r);
  QLORA_ASSIGN_OR_RETURN(
      std::shared_ptr<CudaProduct> product,
      CudaProduct::create(context, plan.problem, plan.product()));
  std::optional<CudaLaunch> decode;
  if (plan.decoded) {
    QLORA_ASSIGN_OR_RETURN(decode, prepareDecode(r, r.type("a"), context));
  }
  return makeCudaKernel([=](const CudaKernelArgs &args) -> Status {
    void *w = args.buffers[1];
    if (decode) {
      void *const decoded = plan.decoded.in(args.buffers[3]);
      QLORA_RETURN_IF_ERROR(decode->enqueue(w, decoded, args));
      w = decoded;
    }
    return product->enqueue(args.buffers[0], w, args.buffers[2],
                            args.buffers[3], args);
  });
}

} // namespace qlora::cuda
