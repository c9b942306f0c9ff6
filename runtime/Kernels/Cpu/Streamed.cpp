// SPDX-License-Identifier: MIT

// matmul.streamed and panel_matmul.streamed: the rows of W are read once, as
// they are stored. A task multiplies runs of a few rows of W with the same runs
// of all rows of a, so that the latter stay in its core's cache. It decodes
// values of W to registers (RunDots), or to its cache (RowDots).
// Sums are f32.

#include <algorithm>

#include "runtime/Kernels/Cpu/BlockProducts.h"
#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/RowDots.h"
#include "runtime/Kernels/Cpu/RunDots.h"

namespace qlora::cpu {

using plans::StreamedPlan;

/// On a CPU without bf16 arithmetic, matmul.onednn multiplies f32 operands
/// unrounded. So that a sampled token has the probability of training, this
/// kernel does the same.
static StreamedPlan planOf(const KernelRequest &request) {
  StreamedPlan plan = StreamedPlan::of(request);
  if (request.op->name == "matmul" &&
      BlockProducts::operandTypeOf(QLORA_DTYPE_BF16) == QLORA_DTYPE_F32) {
    plan.rowType = request.type("a");
    plan.weightType = request.type("b");
  }
  return plan;
}

namespace {

enum Operand { kA, kW, kC, kWorkspace };

/// Rows of W that are multiplied in turns with runs of a, and products of such
/// a tile.
constexpr int64_t kDotTile = 8;
constexpr int64_t kDotProducts = kDotTile * StreamedPlan::kMostRows;
/// Bytes of all rows of a that fit into a core's first cache with their sums.
constexpr int64_t kDotBytes = 16384;

class Streamed final : public LibraryKernel {
public:
  Streamed(const KernelRequest &request, StoredWeight weight)
      : plan(planOf(request)), weight(weight),
        aType(request.type("a")), cType(request.type("c")),
        lda(request.constant("lda")), ldc(request.constant("ldc")),
        alpha(static_cast<float>(request.constantAsDouble("alpha"))),
        beta(static_cast<float>(request.constantAsDouble("beta"))),
        dots(RunDots::of(this->weight, plan.m, plan.k, plan.rowType,
                         plan.weightType)),
        runLength(dots.exist()
                      ? std::min(RunDots::kMostElements,
                                 kDotBytes / dots.elementBytes() / plan.m) /
                            RunDots::kRun * RunDots::kRun
                      : RowDots::kRun),
        // With several runs, more rows of W would not be read in order.
        tile(!dots.exist()           ? RowDots::kTile
             : plan.k <= runLength ? kDotProducts / plan.m
                                   : kDotTile) {}
  Status run(const LibraryKernelArgs &args) override;

private:
  static constexpr int64_t kLanes = StreamedPlan::kLanes;
  static_assert(kLanes == RunDots::kLanes);
  /// Products alpha a . W^T of a task's rows of W.
  using Lines = float[StreamedPlan::kMostRows][StreamedPlan::kMostOutputs];

  void arrangeRows(const LibraryKernelArgs &args) const;
  void runTask(const LibraryKernelArgs &args, int64_t first,
               int64_t outputs) const;
  void dotTile(const LibraryKernelArgs &args, int64_t first, int64_t outputs,
               int64_t done, Lines &lines) const;
  void decodedTile(const LibraryKernelArgs &args, int64_t first,
                   int64_t outputs, int64_t done, Lines &lines) const;
  /// Returns the elements of the run that begins at `from`.
  int64_t countOf(int64_t from) const {
    return std::min(runLength, plan.k - from);
  }
  /// Returns the elements of a row of this run in the workspace.
  int64_t widthOf(int64_t from) const { return dots.padded(countOf(from)); }

  StreamedPlan plan;
  StoredWeight weight;
  qlora_dtype aType, cType;
  int64_t lda, ldc;
  float alpha, beta;
  RunDots dots; ///< exist if values of W are decoded to registers
  int64_t runLength;
  int64_t tile; ///< rows of W multiplied in turns
};

} // namespace

/// Writes a, run by run, so that the rows of a run are adjacent.
void Streamed::arrangeRows(const LibraryKernelArgs &args) const {
  uint8_t *to = plan.rows.in(args.buffers[kWorkspace]);
  for (int64_t from = 0; from < plan.k; from += runLength) {
    const int64_t bytes = widthOf(from) * dots.elementBytes();
    for (int64_t row = 0; row < plan.m; ++row, to += bytes)
      dots.arrange(aType,
                   elementAt(args.buffers[kA], aType, row * lda + from),
                   countOf(from), to);
  }
}

/// Computes the products of `outputs` rows of W, from `first` + `done` on, with
/// values in registers.
void Streamed::dotTile(const LibraryKernelArgs &args, int64_t first,
                       int64_t outputs, int64_t done, Lines &lines) const {
  alignas(64) float sums[kDotProducts * kLanes];
  float products[kDotProducts];
  const uint8_t *x = plan.rows.in(args.buffers[kWorkspace]);
  for (int64_t from = 0; from < plan.k; from += runLength) {
    const int64_t width = widthOf(from);
    dots.add(args.buffers[kW],
             {(first + done) * weight.columns + from, countOf(from),
              weight.columns, outputs},
             {x, width, plan.m, sums, /*clears=*/from == 0});
    x += width * plan.m * dots.elementBytes();
  }
  RowDots::sumsOfLanes(sums, outputs * plan.m, products);
  for (int64_t output = 0; output < outputs; ++output)
    for (int64_t row = 0; row < plan.m; ++row)
      lines[row][done + output] = alpha * products[output * plan.m + row];
}

/// Computes these products with values that are decoded to a buffer.
void Streamed::decodedTile(const LibraryKernelArgs &args, int64_t first,
                           int64_t outputs, int64_t done, Lines &lines) const {
  RowDots decoded(plan.m);
  decoded.clear();
  const auto *x = plan.rows.in<const float>(args.buffers[kWorkspace]);
  for (int64_t from = 0; from < plan.k; from += runLength) {
    const int64_t width = widthOf(from), count = countOf(from);
    for (int64_t output = 0; output < outputs; ++output) {
      float *const to = decoded.weights(output);
      weight.decodeWide(args.buffers[kW],
                        (first + done + output) * weight.columns + from, count,
                        plan.weightType, to);
      std::fill(to + count, to + width, 0.0f);
    }
    decoded.add(x, width, width);
    x += width * plan.m;
  }
  for (int64_t row = 0; row < plan.m; ++row)
    for (int64_t output = 0; output < outputs; ++output)
      lines[row][done + output] = alpha * decoded.sum(row, output);
}

void Streamed::runTask(const LibraryKernelArgs &args, int64_t first,
                       int64_t outputs) const {
  Lines lines;
  for (int64_t done = 0; done < outputs; done += tile)
    (this->*(dots.exist() ? &Streamed::dotTile : &Streamed::decodedTile))(
        args, first, std::min(tile, outputs - done), done, lines);
  for (int64_t row = 0; row < plan.m; ++row)
    narrowSum(lines[row], beta, cType,
              elementAt(args.buffers[kC], cType, row * ldc + first), outputs);
}

Status Streamed::run(const LibraryKernelArgs &args) {
  arrangeRows(args);
  parallelFor(plan.tasks(), threadCount(), [&](int64_t task, int64_t) {
    const int64_t first = task * plan.outputs;
    runTask(args, first, std::min(plan.outputs, plan.n - first));
  });
  return Status::ok();
}

PreparedKernel matmul::streamed::prepare(const KernelRequest &request,
                                         uint64_t) {
  return std::unique_ptr<LibraryKernel>(std::make_unique<Streamed>(
      request,
      StoredWeight::dense(request.type("b"), request.constant("ldb"))));
}

PreparedKernel panel_matmul::streamed::prepare(const KernelRequest &request,
                                               uint64_t) {
  return std::unique_ptr<LibraryKernel>(
      std::make_unique<Streamed>(request, StoredWeight::of(request)));
}

} // namespace qlora::cpu
