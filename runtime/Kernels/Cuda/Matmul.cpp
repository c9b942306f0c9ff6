// SPDX-License-Identifier: MIT

// matmul, panel_matmul and decode.

#include <bit>

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/Gemm.h"
#include "runtime/Kernels/Math/NF4.h"

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

/// A stored weight to numbers of `out`: a launch with the buffers (w, out).
static StatusOr<CudaLaunch>
prepareDecode(const KernelRequest &r, qlora_dtype out, CudaContext &context) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const int64_t block = r.constant("block");
  const bool isDouble = r.constant("double_quant") != 0;
  const NF4Layout layout = NF4Layout::of(rows * columns, block, isDouble);
  // select-kernels and the check of a module take powers of two only.
  const int64_t constants[] = {rows * columns,
                               columns,
                               std::countr_zero(static_cast<uint64_t>(block)),
                               isDouble,
                               layout.scales,
                               layout.nestedAbsmax,
                               layout.nestedMap,
                               layout.codeBook,
                               layout.offset,
                               nf4HasRowScales(columns, block) ? columns / block
                                                               : -1};
  return CudaLaunch::prepare(context,
                             fmt::format("qlora_decode_nf4_{}", dtypeName(out)),
                             {blocksOf(rows * columns, kDecodeElements)},
                             constants);
}

/// NF4 is decoded, the other types are converted.
using Decode =
    std::function<Status(const void *w, void *out, const CudaKernelArgs &args)>;

static StatusOr<Decode> makeDecode(const KernelRequest &r, qlora_dtype out,
                                   CudaContext &context) {
  const qlora_dtype stored = r.type("w");
  if (stored == QLORA_DTYPE_NF4) {
    QLORA_ASSIGN_OR_RETURN(CudaLaunch launch, prepareDecode(r, out, context));
    return Decode(
        [launch](const void *w, void *to, const CudaKernelArgs &args) {
          void *const buffers[] = {const_cast<void *>(w), to};
          return launch.enqueue(buffers, args);
        });
  }
  const int64_t columns = r.constant("columns");
  QLORA_ASSIGN_OR_RETURN(
      CudaConversion conversion,
      CudaConversion::prepare(context, stored, out,
                              {r.constant("rows"), columns, columns, columns}));
  return Decode(
      [conversion](const void *w, void *to, const CudaKernelArgs &args) {
        return conversion.enqueue(w, to, args);
      });
}

PreparedCudaKernel decode::cuda::prepare(const KernelRequest &r,
                                         CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(Decode decode, makeDecode(r, r.type("out"), context));
  return makeCudaKernel([decode](const CudaKernelArgs &args) {
    return decode(args.buffers[0], args.buffers[1], args);
  });
}

PreparedCudaKernel panel_matmul::decoded::prepare(const KernelRequest &r,
                                                  CudaContext &context) {
  const plans::CudaPanelPlan plan = plans::CudaPanelPlan::of(r);
  QLORA_ASSIGN_OR_RETURN(
      std::shared_ptr<CudaProduct> product,
      CudaProduct::create(context, plan.problem, plan.product()));
  if (!plan.decoded)
    return makeCudaKernel([product](const CudaKernelArgs &args) {
      return product->enqueue(args.buffers[0], args.buffers[1], args.buffers[2],
                              args.buffers[3], args);
    });
  QLORA_ASSIGN_OR_RETURN(Decode decode, makeDecode(r, r.type("a"), context));
  return makeCudaKernel([=](const CudaKernelArgs &args) {
    void *const decoded = plan.decoded.in(args.buffers[3]);
    QLORA_RETURN_IF_ERROR(decode(args.buffers[1], decoded, args));
    return product->enqueue(args.buffers[0], decoded, args.buffers[2],
                            args.buffers[3], args);
  });
}

} // namespace qlora::cuda
