// SPDX-License-Identifier: MIT

// CUDA C++: a block of threads for a wide row, a warp for a narrow one. The
// threads stride over the columns, so that neighbours read neighbours, and a
// thread that stores a column has loaded it: writing over an operand is safe.
//
//   for (int c = threadIdx.x; c < 4096; c += 512) { ... }
//   const float sum0 = qlora_block_sum(sum0_part);
//
// A sum ends with a barrier of the block. Every loop but the last one sums, so
// an array that one loop fills is complete before the next loop reads it,
// whatever thread takes which column there.

#include "compiler/Codegen/KernelDialect.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

using namespace qlora;

/// A row up to this width is a warp's: 32 columns a thread.
static constexpr int64_t kWarpColumns = 1024;
static constexpr uint32_t kWarp = 32, kWarpsPerBlock = 8;
/// Columns that a thread of a block takes at least.
static constexpr int64_t kColumnsPerThread = 8;
static constexpr uint64_t kMinThreads = 128, kMaxThreads = 1024;
/// Shared memory of a block for arrays of a row: the 48 KiB that every card
/// has without asking, less what sums of a block need.
static constexpr int64_t kArrayBytes = (48 << 10) - 1024;

static bool isWarps(int64_t columns) { return columns <= kWarpColumns; }

namespace {

struct CudaDialect : KernelDialect {
  KernelGeometry geometry(int64_t columns) const override;
  std::string geometryText(int64_t columns) const override;
  int64_t maxRowArrays(int64_t columns) const override {
    return kArrayBytes / (geometry(columns).rowsPerBlock * 4 * columns);
  }
  std::string include() const override {
    return "runtime/Kernels/Cuda/Device/Common.cuh";
  }
  std::string tableType() const override {
    return "static __device__ const float";
  }
  Statements signature(std::string_view name, int64_t columns) const override;
  std::string argument(std::string_view field) const override {
    return fmt::format("args.{}", field);
  }
  Statements beginRows(int64_t columns) const override;
  Statements endRows() const override { return {}; }
  Statements rowArray(std::string_view name, int64_t columns) const override;
  Statements loop(const ColumnLoop &loop) const override;
};

} // namespace

KernelGeometry CudaDialect::geometry(int64_t columns) const {
  if (isWarps(columns))
    return {kWarp * kWarpsPerBlock, kWarpsPerBlock};
  uint64_t threads = std::bit_ceil(
      static_cast<uint64_t>((columns + kColumnsPerThread - 1) /
                            kColumnsPerThread));
  return {static_cast<uint32_t>(std::clamp(threads, kMinThreads, kMaxThreads)),
          1};
}

std::string CudaDialect::geometryText(int64_t columns) const {
  if (isWarps(columns))
    return fmt::format(", a warp each, {} a block", kWarpsPerBlock);
  return fmt::format(", a block of {} threads each",
                     geometry(columns).threads);
}

Statements CudaDialect::signature(std::string_view name,
                                  int64_t columns) const {
  return {fmt::format("extern \"C\" __global__ void __launch_bounds__({})",
                      geometry(columns).threads),
          fmt::format("{}(const __grid_constant__ qlora_cuda_args args) {{",
                      name)};
}

Statements CudaDialect::beginRows(int64_t columns) const {
  if (!isWarps(columns))
    return {"const int64_t row = blockIdx.x;"};
  return {fmt::format("const int64_t row = int64_t(blockIdx.x) * {} + "
                      "threadIdx.x / {};",
                      kWarpsPerBlock, kWarp),
          "if (row >= args.rows)", "  return;"};
}

Statements CudaDialect::rowArray(std::string_view name,
                                 int64_t columns) const {
  if (!isWarps(columns))
    return {fmt::format("__shared__ float {}[{}];", name, columns)};
  return {fmt::format("__shared__ float {}s[{}][{}];", name, kWarpsPerBlock,
                      columns),
          fmt::format("float *const {} = {}s[threadIdx.x / {}];", name, name,
                      kWarp)};
}

Statements CudaDialect::loop(const ColumnLoop &loop) const {
  Statements lines;
  for (const std::string &sum : loop.sums)
    appendStatement(lines, 0, fmt::format("float {}_part = 0.0f;", sum));
  bool warps = isWarps(loop.rowColumns);
  appendStatement(
      lines, 0,
      warps ? fmt::format("for (int c = threadIdx.x % {0}; c < {1}; "
                          "c += {0}) {{",
                          kWarp, loop.columns)
            : fmt::format("for (int c = threadIdx.x; c < {}; c += {}) {{",
                          loop.columns, geometry(loop.rowColumns).threads));
  for (const std::string &line : loop.body)
    appendStatement(lines, 2, line);
  for (const auto &[sum, term] : loop.terms)
    appendStatement(lines, 2, fmt::format("{}_part += {};", sum, term));
  appendStatement(lines, 0, "}");
  for (const std::string &sum : loop.sums)
    appendStatement(lines, 0,
                    fmt::format("const float {} = qlora_{}_sum({}_part);", sum,
                                warps ? "warp" : "block", sum));
  if (warps && loop.fillsArray) // a warp's sum orders no memory
    appendStatement(lines, 0, "__syncwarp();");
  return lines;
}

const KernelDialect &qlora::cudaDialect() {
  static const CudaDialect dialect;
  return dialect;
}
