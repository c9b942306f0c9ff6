// SPDX-License-Identifier: MIT

// CUDA C++: a block of threads computes a wide row, a warp computes a narrow
// row. In each iteration, neighbouring threads read neighbouring columns. A
// thread stores only columns that it loaded, so a result may alias an operand.
//
//   for (int c = threadIdx.x * 8; c < 4096; c += 4096) {
//     const qlora_lanes<8> x0s = qlora_load_bf16<8>(in0_row, c);  // 16 bytes
//     for (int lane = 0; lane < 8; ++lane) ... x0s[lane] ...
//   }
//   const float sum0 = qlora_block_sum(sum0_part);
//
// A row array that one loop fills must be complete before a thread reads it in
// the next loop. Every loop except the last ends with a sum or maximum. Over a
// block, this reduction includes a barrier. Over a warp it does not, so a loop
// that fills a row array ends with __syncwarp() too.

#include "compiler/Codegen/KernelSpelling.h"

#include <fmt/format.h>

using namespace qlora;

/// Widest row that a warp computes: 32 columns per thread.
static constexpr int64_t kWarpColumns = 1024;
static constexpr int64_t kWarp = 32;
static constexpr uint32_t kWarpsPerBlock = 8;
/// Minimum columns per thread of a block.
static constexpr int64_t kColumnsPerThread = 8;
static constexpr int64_t kMinThreads = 128, kMaxThreads = 512;
/// Minimum resident threads per multiprocessor, for __launch_bounds__. Limits
/// the registers per thread.
static constexpr uint32_t kThreadsThere = 1024;
/// Shared memory of a block for row arrays, in bytes: the 48 KiB that every GPU
/// has without opt-in, less what block reductions need.
static constexpr int64_t kArrayBytes = (48 << 10) - 1024;

static bool isWarps(int64_t columns) { return columns <= kWarpColumns; }

namespace {

struct CudaSpelling : KernelSpelling {
  KernelGeometry geometry(int64_t columns) const override;
  std::string geometryText(int64_t columns) const override;
  int64_t maxRowArrays(int64_t columns) const override {
    return kArrayBytes / (geometry(columns).rowsPerBlock * 4 * columns);
  }
  bool hasQuickFunctions() const override { return true; }
  int64_t lanes(int64_t columns, int64_t rowColumns,
                int64_t aligned) const override;
  std::string include() const override {
    return "runtime/Kernels/Cuda/Device/Lanes.cuh";
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
  std::string rowQuotient(int64_t divisor) const override {
    return divisor == 1 ? "int64_t(row)"
                        : fmt::format("int64_t(row / {})", divisor);
  }
  std::string rowRemainder(int64_t divisor) const override {
    return fmt::format("int64_t(row % {})", divisor);
  }
  Statements rowArray(std::string_view name, int64_t columns) const override;
  Statements loop(const ColumnLoop &loop) const override;
  Statements oncePerRow(std::string_view statement,
                        int64_t columns) const override;

private:
  int64_t threadsOfRow(int64_t columns) const;
};

} // namespace

KernelGeometry CudaSpelling::geometry(int64_t columns) const {
  if (isWarps(columns))
    return {uint32_t(kWarp) * kWarpsPerBlock, kWarpsPerBlock};
  // Use the fewest threads that need no more iterations than kMaxThreads would,
  // so that as few threads as possible are idle in the last iteration.
  auto turns = [&](int64_t threads) {
    int64_t step = threads * kColumnsPerThread;
    return (columns + step - 1) / step;
  };
  int64_t threads = kMaxThreads;
  while (threads > kMinThreads && turns(threads - kWarp) == turns(kMaxThreads))
    threads -= kWarp;
  return {static_cast<uint32_t>(threads), 1};
}

/// Returns the threads that compute a row together.
int64_t CudaSpelling::threadsOfRow(int64_t columns) const {
  return isWarps(columns) ? kWarp : geometry(columns).threads;
}

std::string CudaSpelling::geometryText(int64_t columns) const {
  if (isWarps(columns))
    return fmt::format(", a warp each, {} a block", kWarpsPerBlock);
  return fmt::format(", a block of {} threads each", geometry(columns).threads);
}

Statements CudaSpelling::signature(std::string_view name,
                                  int64_t columns) const {
  const uint32_t threads = geometry(columns).threads;
  return {fmt::format("extern \"C\" __global__ void __launch_bounds__({}, {})",
                      threads, (kThreadsThere + threads - 1) / threads),
          fmt::format("{}(const __grid_constant__ qlora_cuda_args args) {{",
                      name)};
}

Statements CudaSpelling::beginRows(int64_t columns) const {
  if (!isWarps(columns))
    return {"const uint32_t row = blockIdx.x;"};
  return {
      fmt::format("const uint32_t row = blockIdx.x * {} + threadIdx.x / {};",
                  kWarpsPerBlock, kWarp),
      "if (row >= args.rows)", "  return;"};
}

Statements CudaSpelling::rowArray(std::string_view name,
                                 int64_t columns) const {
  if (!isWarps(columns))
    return {fmt::format("__shared__ float {}[{}];", name, columns)};
  return {fmt::format("__shared__ float {}s[{}][{}];", name, kWarpsPerBlock,
                      columns),
          fmt::format("float *const {} = {}s[threadIdx.x / {}];", name, name,
                      kWarp)};
}

/// Returns the most lanes for which less than half of the threads are idle.
int64_t CudaSpelling::lanes(int64_t columns, int64_t rowColumns,
                           int64_t aligned) const {
  int64_t lanes = aligned;
  while (lanes > 1 && (columns % lanes ||
                       lanes * threadsOfRow(rowColumns) >= 2 * columns))
    lanes /= 2;
  return lanes;
}

/// Returns the body of the loop over the columns.
static Statements loopBody(const ColumnLoop &loop) {
  Statements lines = loop.loads;
  const bool inLanes = loop.lanes > 1;
  if (inLanes) {
    lines.push_back("QLORA_UNROLL");
    lines.push_back(
        fmt::format("for (int lane = 0; lane < {}; ++lane) {{", loop.lanes));
  }
  for (const std::string &line : loop.body)
    appendStatement(lines, inLanes ? 2 : 0, line);
  for (const auto &[name, isMax, terms] : loop.reductions)
    for (const std::string &term : terms)
      appendStatement(
          lines, inLanes ? 2 : 0,
          isMax ? fmt::format("{0}_part = qlora_maximum({0}_part, {1});", name,
                              term)
                : fmt::format("{}_part += {};", name, term));
  if (inLanes)
    lines.push_back("}");
  lines.insert(lines.end(), loop.stores.begin(), loop.stores.end());
  return lines;
}

Statements CudaSpelling::loop(const ColumnLoop &loop) const {
  Statements lines;
  for (const Reduction &reduction : loop.reductions)
    appendStatement(lines, 0,
                    fmt::format("float {}_part = {};", reduction.name,
                                reduction.isMax ? "qlora_lowest()" : "0.0f"));
  bool warps = isWarps(loop.rowColumns);
  std::string first =
      warps ? fmt::format("threadIdx.x % {}", kWarp) : "threadIdx.x";
  if (loop.lanes > 1)
    first += fmt::format(" * {}", loop.lanes);
  const int64_t step = loop.lanes * threadsOfRow(loop.rowColumns);
  // Do not unroll: more loads in flight gain nothing and need more registers.
  if (loop.lanes > 1 && loop.columns > step)
    appendStatement(lines, 0, "QLORA_ROLL");
  // Print a single iteration without a loop, because nvcc keeps the loop.
  if (loop.columns == step)
    lines.insert(lines.end(), {"{", fmt::format("  const int c = {};", first)});
  else
    appendStatement(lines, 0,
                    fmt::format("for (int c = {}; c < {}; c += {}) {{", first,
                                loop.columns, step));
  for (const std::string &line : loopBody(loop))
    appendStatement(lines, 2, line);
  appendStatement(lines, 0, "}");
  for (const auto &[name, isMax, terms] : loop.reductions)
    appendStatement(lines, 0,
                    fmt::format("const float {0} = qlora_{1}_{2}({0}_part);",
                                name, warps ? "warp" : "block",
                                isMax ? "max" : "sum"));
  if (warps && loop.fillsArray) // a warp reduction does not order memory
    appendStatement(lines, 0, "__syncwarp();");
  return lines;
}

Statements CudaSpelling::oncePerRow(std::string_view statement,
                                   int64_t columns) const {
  return {isWarps(columns) ? fmt::format("if (threadIdx.x % {} == 0)", kWarp)
                           : std::string("if (threadIdx.x == 0)"),
          fmt::format("  {}", statement)};
}

const KernelSpelling &qlora::cudaSpelling() {
  static const CudaSpelling spelling;
  return spelling;
}
