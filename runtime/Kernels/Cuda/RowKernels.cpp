// SPDX-License-Identifier: MIT

// Ops that are one pass over rows: conversion, embedding, column_sum,
// accumulate, copy_rows, swap_blocks, clip_norm, length, adamw_8bit, quantize,
// quantize_scales. Device code: Device/{Rows,SwapBlocks,AdamW8Bit,Quantize}.cu.

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/CudaKernel.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Kernels/Math/NF4Quantize.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

namespace qlora {

/// Merges all rows into one row if both operands are dense.
static ConversionShape collapsed(ConversionShape shape) {
  if (shape.rows > 1 &&
      (shape.ldx != shape.columns || shape.ldo != shape.columns))
    return shape;
  const int64_t count = shape.rows * shape.columns;
  return {1, count, count, count};
}

/// Returns a grid of blocks that handle 1024 groups of 8 adjacent elements.
static CudaGrid groupGrid(ConversionShape shape) {
  return {blocksOf(shape.rows * blocksOf(shape.columns, 8), 1024)};
}

StatusOr<CudaLaunch> prepareConversion(CudaContext &context, qlora_dtype from,
                                       qlora_dtype to, ConversionShape shape) {
  const ConversionShape walk = collapsed(shape);
  const std::string symbol =
      from == to
          ? fmt::format("qlora_copy_rows_b{}", dtypeBits(from))
          : fmt::format("qlora_convert_{}_{}", dtypeName(from), dtypeName(to));
  const int64_t constants[] = {walk.rows, walk.columns, walk.ldx, walk.ldo};
  return CudaLaunch::prepare(context, symbol, groupGrid(walk), constants);
}

namespace cuda {

PreparedCudaKernel embedding::cuda::prepare(const KernelRequest &r,
                                            CudaContext &context) {
  return makeOpKernel(r, {"w", "out"}, r.constant("rows"), context);
}

PreparedCudaKernel embedding_grad::cuda::prepare(const KernelRequest &r,
                                                 CudaContext &context) {
  return makeOpKernel(r, {"dout"}, r.constant("rows"), context);
}

PreparedCudaKernel column_sum::cuda::prepare(const KernelRequest &r,
                                             CudaContext &context) {
  static constexpr int64_t kPartials = plans::kCudaColumnSumPartials;
  const int64_t tiles = blocksOf(r.constant("columns"), 256);
  std::vector<int64_t> constants = r.constants;
  constants.push_back(kPartials);
  return makeLaunchKernel(context,
                          {{symbolOf(r, {"x"}), {tiles * kPartials}},
                           {"qlora_column_sum_add", {tiles}}},
                          constants);
}

PreparedCudaKernel accumulate::cuda::prepare(const KernelRequest &r,
                                             CudaContext &context) {
  const ConversionShape walk =
      collapsed({r.constant("rows"), r.constant("columns"), r.constant("ldx"),
                 r.constant("ldy")});
  const int64_t constants[] = {walk.rows, walk.columns, walk.ldx, walk.ldo};
  return makeLaunchKernel(context, {{symbolOf(r, {"x", "y"}), groupGrid(walk)}},
                          constants);
}

PreparedCudaKernel copy_rows::cuda::prepare(const KernelRequest &r,
                                            CudaContext &context) {
  const qlora_dtype dtype = r.type("x");
  QLORA_ASSIGN_OR_RETURN(
      const CudaLaunch copy,
      prepareConversion(context, dtype, dtype,
                        {r.constant("rows"), r.constant("columns"),
                         r.constant("ldx"), r.constant("ldo")}));
  return makeCudaKernel([copy](const CudaKernelArgs &args) {
    return copy.enqueue(args.buffers, args);
  });
}

/// Each block of Device/SwapBlocks.cu writes 1024 words of 16 bytes.
PreparedCudaKernel swap_blocks::cuda::prepare(const KernelRequest &r,
                                              CudaContext &context) {
  const int64_t bits = dtypeBits(r.type("x"));
  const int64_t elements = r.constant("rows") * r.constant("columns");
  return makeLaunchKernel(context,
                          {{fmt::format("qlora_swap_blocks_b{}", bits),
                            {blocksOf(elements, 1024 * 128 / bits)}}},
                          r.constants);
}

/// Launches blocks that compute partial sums, then one block that adds these.
/// Both launches get the number of partial sums as their last constant.
static PreparedCudaKernel makeNormKernel(const KernelRequest &r,
                                         CudaContext &context,
                                         const std::string &name) {
  static constexpr int64_t kPartials = plans::kClipNormPartials;
  std::vector<int64_t> constants = r.constants;
  constants.push_back(kPartials);
  return makeLaunchKernel(
      context, {{name + "_partials", {kPartials}}, {name + "_finish", {1}}},
      constants);
}

PreparedCudaKernel clip_norm::cuda::prepare(const KernelRequest &r,
                                            CudaContext &context) {
  return makeNormKernel(r, context, "qlora_clip_norm");
}

PreparedCudaKernel length::cuda::prepare(const KernelRequest &r,
                                         CudaContext &context) {
  return makeNormKernel(r, context, "qlora_length");
}

PreparedCudaKernel adamw_8bit::cuda::prepare(const KernelRequest &r,
                                             CudaContext &context) {
  const int64_t elements = r.constant("rows") * r.constant("columns");
  return makeOpKernel(r, {}, blocksOf(elements, kStateBlock), context);
}

// Quantization, Device/Quantize.cu -------------------------------------------

/// NF4 blocks per thread block.
static constexpr int64_t kBlocksOfABlock = 8;

PreparedCudaKernel quantize::cuda::prepare(const KernelRequest &r,
                                           CudaContext &context) {
  const int64_t blocks = blocksOf(r.constant("elements"), r.constant("block"));
  return makeOpKernel(r, {"x"}, blocksOf(blocks, kBlocksOfABlock), context);
}

PreparedCudaKernel quantize_scales::cuda::prepare(const KernelRequest &r,
                                                  CudaContext &context) {
  return makeLaunchKernel(
      context,
      {{"qlora_quantize_offset", {1, kNF4MeanPartials}},
       {"qlora_quantize_scales", {blocksOf(r.constant("blocks"), kNestedRun)}}},
      r.constants);
}

} // namespace cuda
} // namespace qlora
