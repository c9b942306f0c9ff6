// SPDX-License-Identifier: MIT

// matmul.streamed and panel_matmul.streamed: the rows of W are read once, as
// they are stored. A task decodes a run of four rows of W in its core's cache
// and multiplies it with the same run of all rows of a. Sums are f32.

#include <algorithm>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/RowDots.h"
#include "runtime/Kernels/Rows.h"

namespace qlora::cpu {

using plans::StreamedPlan;

namespace {

enum Operand { kA, kW, kC, kWorkspace };

class Streamed final : public LibraryKernel {
public:
  Streamed(const KernelRequest &request, StoredWeight weight)
      : plan(StreamedPlan::of(request)), weight(weight),
        aType(request.type("a")), cType(request.type("c")),
        lda(request.constant("lda")), ldc(request.constant("ldc")),
        alpha(static_cast<float>(request.constantAsDouble("alpha"))),
        beta(static_cast<float>(request.constantAsDouble("beta"))),
        addDots(plan.m == 1 ? weight.findDots(plan.weightType) : nullptr) {}
  Status run(const LibraryKernelArgs &args) override;

private:
  void widenRows(const LibraryKernelArgs &args) const;
  void runTask(const LibraryKernelArgs &args, int64_t first,
               int64_t outputs) const;
  void addRuns(const LibraryKernelArgs &args, int64_t first, int64_t outputs,
               RowDots &dots) const;
  /// Returns the elements of the run that begins at `from`, with padding.
  int64_t widthOf(int64_t from) const {
    return std::min(RowDots::kRun, plan.depth - from);
  }

  StreamedPlan plan;
  StoredWeight weight;
  qlora_dtype aType, cType;
  int64_t lda, ldc;
  float alpha, beta;
  StoredWeight::AddDots addDots; ///< for a single row of a, or null
};

} // namespace

/// Writes a in f32, run by run, so that the rows of a run are adjacent. Pads
/// the last run with zeros.
void Streamed::widenRows(const LibraryKernelArgs &args) const {
  auto *to = plan.rows.in<float>(args.buffers[kWorkspace]);
  for (int64_t from = 0; from < plan.depth; from += RowDots::kRun) {
    const int64_t width = widthOf(from), count = std::min(width, plan.k - from);
    for (int64_t row = 0; row < plan.m; ++row, to += width) {
      widen(aType, elementAt(args.buffers[kA], aType, row * lda + from), to,
            count);
      for (int64_t i = 0; plan.rowType != aType && i < count; ++i)
        to[i] = qlora_round_bf16(to[i]);
      std::fill(to + count, to + width, 0.0f);
    }
  }
}

/// Adds all products for `outputs` rows of W from `first` on.
void Streamed::addRuns(const LibraryKernelArgs &args, int64_t first,
                       int64_t outputs, RowDots &dots) const {
  dots.clear();
  const auto *x = plan.rows.in<const float>(args.buffers[kWorkspace]);
  for (int64_t output = 0; addDots && output < outputs; ++output)
    addDots(weight.runOf(args.buffers[kW],
                         (first + output) * weight.columns, plan.k),
            x, dots.lanes(0, output));
  for (int64_t from = 0; !addDots && from < plan.depth; from += RowDots::kRun) {
    const int64_t width = widthOf(from), count = std::min(width, plan.k - from);
    for (int64_t output = 0; output < outputs; ++output) {
      float *const to = dots.weights(output);
      weight.decodeWide(args.buffers[kW],
                        (first + output) * weight.columns + from, count,
                        plan.weightType, to);
      std::fill(to + count, to + width, 0.0f);
    }
    dots.add(x, width, width);
    x += width * plan.m;
  }
}

void Streamed::runTask(const LibraryKernelArgs &args, int64_t first,
                       int64_t outputs) const {
  RowDots dots(plan.m);
  float lines[StreamedPlan::kMostRows][StreamedPlan::kMostOutputs];
  for (int64_t done = 0; done < outputs; done += RowDots::kTile) {
    const int64_t tile = std::min(RowDots::kTile, outputs - done);
    addRuns(args, first + done, tile, dots);
    for (int64_t row = 0; row < plan.m; ++row)
      for (int64_t output = 0; output < tile; ++output)
        lines[row][done + output] = alpha * dots.sum(row, output);
  }
  for (int64_t row = 0; row < plan.m; ++row)
    narrowSum(lines[row], beta, cType,
              elementAt(args.buffers[kC], cType, row * ldc + first), outputs);
}

Status Streamed::run(const LibraryKernelArgs &args) {
  widenRows(args);
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
      StoredWeight{request.type("b"), request.constant("ldb"), {}}));
}

PreparedKernel panel_matmul::streamed::prepare(const KernelRequest &request,
                                               uint64_t) {
  return std::unique_ptr<LibraryKernel>(
      std::make_unique<Streamed>(request, StoredWeight::of(request)));
}

} // namespace qlora::cpu
