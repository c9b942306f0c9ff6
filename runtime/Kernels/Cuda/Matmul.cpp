// SPDX-License-Identifier: MIT

// matmul, panel_matmul, int8_matmul, decode and adapted_norm.

#include <bit>
#include <limits>

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/Gemm.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

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

// decode ---------------------------------------------------------------------

/// Elements per block of Device/Decode.cu: warps * tiles * elements of a tile.
static constexpr int64_t kDecodeElements = 8 * 2 * 1024;

static StoredLayout layoutOf(const KernelRequest &r) {
  return StoredLayout::of(r.type("w"),
                          r.constant("rows") * r.constant("columns"),
                          r.constant("block"), r.constant("double_quant") != 0);
}

/// Returns the constants of Device/Decode.cu for the layout of w.
static std::vector<int64_t> decodeConstants(const KernelRequest &r) {
  const auto block = static_cast<uint64_t>(r.constant("block"));
  const StoredLayout layout = layoutOf(r);
  const bool isPower = std::has_single_bit(block);
  // 2^64 / block, rounded up; unused if block is a power of two.
  const uint64_t reciprocal =
      isPower ? 0 : std::numeric_limits<uint64_t>::max() / block + 1;
  return {layout.elements,
          layout.block,
          isPower ? std::countr_zero(block) : -1,
          layout.doubleQuant,
          layout.scales,
          layout.nestedAbsmax,
          layout.nestedMap,
          layout.codeBook,
          layout.correction,
          layout.zeros,
          static_cast<int64_t>(reciprocal)};
}

/// Returns the format's part of a symbol of Device/Decode.cu.
static std::string codingOf(const StoredFormat &format) {
  return fmt::format("{}bit{}", format.bits, format.hasZeros ? "_zeros" : "");
}

StatusOr<CudaLaunch> prepareDecode(const KernelRequest &r, qlora_dtype out,
                                   CudaContext &context) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const qlora_dtype stored = r.type("w");
  if (!storedFormat(stored))
    return prepareConversion(context, stored, out,
                             {rows, columns, columns, columns});
  return CudaLaunch::prepare(
      context,
      fmt::format("qlora_decode_{}_{}", codingOf(*storedFormat(stored)),
                  dtypeName(out)),
      {blocksOf(rows * columns, kDecodeElements)}, decodeConstants(r));
}

PreparedCudaKernel decode::cuda::prepare(const KernelRequest &r,
                                         CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(const CudaLaunch decode,
                         prepareDecode(r, r.type("out"), context));
  return makeCudaKernel([decode](const CudaKernelArgs &args) {
    return decode.enqueue(args.buffers, args);
  });
}

/// Rows and columns of a tile of Device/Int8Matmul.cu.
static constexpr int64_t kInt8Tile = 32;

PreparedCudaKernel int8_matmul::cuda::prepare(const KernelRequest &r,
                                              CudaContext &context) {
  const plans::CudaInt8Plan plan = plans::CudaInt8Plan::of(r);
  const std::string_view a = dtypeName(r.type("a"));
  std::vector<int64_t> constants = r.constants;
  for (uint64_t offset : {plan.codes.offset, plan.scales.offset,
                          plan.marks.offset, uint64_t(layoutOf(r).scales)})
    constants.push_back(int64_t(offset));
  const int64_t m = r.constant("m");
  return makeLaunchKernel(
      context,
      {{"qlora_int8_clear", {blocksOf(r.constant("columns"), 256)}},
       {fmt::format("qlora_int8_rows_{}", a), {m}},
       {fmt::format("qlora_int8_matmul_{}_{}", a, dtypeName(r.type("c"))),
        {blocksOf(m, kInt8Tile) * blocksOf(r.constant("rows"), kInt8Tile)}}},
      constants);
}

PreparedCudaKernel adapted_norm::cuda::prepare(const KernelRequest &r,
                                               CudaContext &context) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const bool isTransposed = r.constant("turned");
  const StoredFormat *format = storedFormat(r.type("w"));
  std::vector<int64_t> constants(11);
  if (format)
    constants = decodeConstants(r);
  const auto scale = static_cast<float>(r.constantAsDouble("scale"));
  for (int64_t constant :
       {isTransposed ? rows : columns, r.constant("rank"),
        isTransposed ? 1 : columns, isTransposed ? columns : 1,
        int64_t{std::bit_cast<uint32_t>(scale)}})
    constants.push_back(constant);
  return makeLaunchKernel(
      context,
      {{fmt::format("qlora_adapted_norm_{}",
                    format ? codingOf(*format)
                           : std::string(dtypeName(r.type("w")))),
        {isTransposed ? columns : rows}}},
      constants);
}

PreparedCudaKernel panel_matmul::tensor::prepare(const KernelRequest &r,
                                                 CudaContext &context) {
  const int64_t m = r.constant("m"), rows = r.constant("rows");
  std::vector<int64_t> constants = decodeConstants(r);
  for (const char *name : {"m", "rows", "columns", "lda", "ldc", "alpha",
                           "beta"})
    constants.push_back(r.constant(name));
  constants.push_back(r.type("c") == QLORA_DTYPE_BF16);
  const std::string symbol =
      fmt::format("qlora_few_rows_{}_{}", codingOf(*storedFormat(r.type("w"))),
                  blocksOf(m, 8));
  return makeLaunchKernel(
      context, {{symbol, {blocksOf(rows, plans::kFewRowsOutputs)}}}, constants);
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
