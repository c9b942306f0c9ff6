// SPDX-License-Identifier: MIT

// The ops that walk over rows once: conversion, embedding, column_sum,
// accumulate, copy_rows, clip_norm; and quantize, quantize_scales.
// Device/{Rows,Embedding,ClipNorm,Quantize}.cu.

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/CudaKernels.h"
#include "runtime/Kernels/Math/NF4.h"
#include "runtime/Kernels/Math/NF4Quantize.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

namespace qlora {

/// One row where there are no gaps.
static CudaConversion::Shape collapsed(CudaConversion::Shape shape) {
  if (shape.rows > 1 &&
      (shape.ldx != shape.columns || shape.ldo != shape.columns))
    return shape;
  const int64_t count = shape.rows * shape.columns;
  return {1, count, count, count};
}

/// A block of Device/Rows.cu has 1024 groups of 8 neighbours in a row.
static CudaGrid groupGrid(CudaConversion::Shape shape) {
  return {blocksOf(shape.rows * blocksOf(shape.columns, 8), 1024)};
}

StatusOr<CudaConversion> CudaConversion::prepare(CudaContext &context,
                                                 qlora_dtype from,
                                                 qlora_dtype to, Shape shape) {
  const Shape walk = collapsed(shape);
  const std::string symbol =
      from == to
          ? fmt::format("qlora_copy_rows_b{}", dtypeBits(from))
          : fmt::format("qlora_convert_{}_{}", dtypeName(from), dtypeName(to));
  const int64_t constants[] = {walk.rows, walk.columns, walk.ldx, walk.ldo};
  QLORA_ASSIGN_OR_RETURN(
      CudaLaunch launch,
      CudaLaunch::prepare(context, symbol, groupGrid(walk), constants));
  return CudaConversion(launch);
}

Status CudaConversion::enqueue(const void *x, void *out,
                               const CudaKernelArgs &args) const {
  void *const buffers[] = {const_cast<void *>(x), out};
  return launch.enqueue(buffers, args);
}

namespace cuda {

PreparedCudaKernel embedding::cuda::prepare(const KernelRequest &r,
                                            CudaContext &context) {
  const std::string symbol =
      fmt::format("qlora_embedding_{}_{}", dtypeName(r.type("w")),
                  dtypeName(r.type("out")));
  return makeLaunchKernel(context, symbol, {r.constant("rows")}, r.constants);
}

PreparedCudaKernel embedding_grad::cuda::prepare(const KernelRequest &r,
                                                 CudaContext &context) {
  const std::string symbol =
      fmt::format("qlora_embedding_grad_{}", dtypeName(r.type("dout")));
  return makeLaunchKernel(context, symbol, {r.constant("rows")}, r.constants);
}

PreparedCudaKernel column_sum::cuda::prepare(const KernelRequest &r,
                                             CudaContext &context) {
  static constexpr int64_t kPartials = plans::kCudaColumnSumPartials;
  const int64_t tiles = blocksOf(r.constant("columns"), 256);
  std::vector<int64_t> constants = r.constants;
  constants.push_back(kPartials);
  const std::string symbol =
      fmt::format("qlora_column_sum_{}", dtypeName(r.type("x")));
  QLORA_ASSIGN_OR_RETURN(
      CudaLaunch sum,
      CudaLaunch::prepare(context, symbol, {tiles * kPartials}, constants));
  QLORA_ASSIGN_OR_RETURN(
      CudaLaunch add,
      CudaLaunch::prepare(context, "qlora_column_sum_add", {tiles}, constants));
  return makeCudaKernel([sum, add](const CudaKernelArgs &args) {
    QLORA_RETURN_IF_ERROR(sum.enqueue(args.buffers, args));
    return add.enqueue(args.buffers, args);
  });
}

PreparedCudaKernel accumulate::cuda::prepare(const KernelRequest &r,
                                             CudaContext &context) {
  const CudaConversion::Shape walk =
      collapsed({r.constant("rows"), r.constant("columns"), r.constant("ldx"),
                 r.constant("ldy")});
  const std::string symbol = fmt::format(
      "qlora_accumulate_{}_{}", dtypeName(r.type("x")), dtypeName(r.type("y")));
  const int64_t constants[] = {walk.rows, walk.columns, walk.ldx, walk.ldo};
  return makeLaunchKernel(context, symbol, groupGrid(walk), constants);
}

PreparedCudaKernel copy_rows::cuda::prepare(const KernelRequest &r,
                                            CudaContext &context) {
  const qlora_dtype dtype = r.type("x");
  QLORA_ASSIGN_OR_RETURN(
      CudaConversion copy,
      CudaConversion::prepare(context, dtype, dtype,
                              {r.constant("rows"), r.constant("columns"),
                               r.constant("ldx"), r.constant("ldo")}));
  return makeCudaKernel([copy](const CudaKernelArgs &args) {
    return copy.enqueue(args.buffers[0], args.buffers[1], args);
  });
}

PreparedCudaKernel clip_norm::cuda::prepare(const KernelRequest &r,
                                            CudaContext &context) {
  static constexpr int64_t kPartials = plans::kClipNormPartials;
  std::vector<int64_t> constants = r.constants;
  constants.push_back(kPartials);
  QLORA_ASSIGN_OR_RETURN(CudaLaunch partials,
                         CudaLaunch::prepare(context,
                                             "qlora_clip_norm_partials",
                                             {kPartials}, constants));
  QLORA_ASSIGN_OR_RETURN(
      CudaLaunch finish,
      CudaLaunch::prepare(context, "qlora_clip_norm_finish", {1}, constants));
  return makeCudaKernel([partials, finish](const CudaKernelArgs &args) {
    QLORA_RETURN_IF_ERROR(partials.enqueue(args.buffers, args));
    return finish.enqueue(args.buffers, args);
  });
}

// Quantising, of Device/Quantize.cu ------------------------------------------

/// NF4 blocks of one block of threads.
static constexpr int64_t kBlocksOfABlock = 8;

PreparedCudaKernel quantize::cuda::prepare(const KernelRequest &r,
                                           CudaContext &context) {
  const int64_t blocks = blocksOf(r.constant("elements"), r.constant("block"));
  return makeLaunchKernel(
      context, fmt::format("qlora_quantize_{}", dtypeName(r.type("x"))),
      {blocksOf(blocks, kBlocksOfABlock)}, r.constants);
}

PreparedCudaKernel quantize_scales::cuda::prepare(const KernelRequest &r,
                                                  CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(
      CudaLaunch offset,
      CudaLaunch::prepare(context, "qlora_quantize_offset",
                          {1, kNF4MeanPartials}, r.constants));
  QLORA_ASSIGN_OR_RETURN(
      CudaLaunch runs,
      CudaLaunch::prepare(context, "qlora_quantize_scales",
                          {blocksOf(r.constant("blocks"), kNF4NestedBlock)},
                          r.constants));
  return makeCudaKernel([offset, runs](const CudaKernelArgs &args) {
    QLORA_RETURN_IF_ERROR(offset.enqueue(args.buffers, args));
    return runs.enqueue(args.buffers, args);
  });
}

} // namespace cuda
} // namespace qlora
