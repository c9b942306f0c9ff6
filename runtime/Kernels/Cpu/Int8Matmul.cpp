// SPDX-License-Identifier: MIT

// int8_matmul: first all threads round rows of a to integers. Then each thread
// widens a panel of W's codes and multiplies it with all rows, in its cache.

#include <algorithm>
#include <atomic>
#include <cstring>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Math/Int8Matmul.h"
#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora::cpu::int8_matmul {

enum Operand { kA, kW, kC, kWorkspace };

using plans::Int8Plan;

/// Rounds a row to float16. Sets `largest` to the bits of the largest magnitude
/// that is no outlier. Returns whether there are outliers.
QLORA_VECTOR static bool scanRow(float *__restrict x, int64_t count,
                                 uint32_t outlier, uint32_t &largest) {
  uint32_t most = 0, found = 0;
  for (int64_t i = 0; i < count; ++i) {
    x[i] = qlora_round_f16(x[i]);
    const uint32_t magnitude = qlora_to_bits(x[i]) & 0x7fffffffu;
    const uint32_t is = qlora_is_outlier(magnitude, outlier);
    const uint32_t kept = is ? 0 : magnitude;
    found |= is;
    most = kept > most ? kept : most;
  }
  largest = most;
  return found != 0;
}

QLORA_VECTOR static void roundRow(const float *__restrict x, int64_t count,
                                  float inverse, int16_t *__restrict codes) {
  for (int64_t i = 0; i < count; ++i)
    codes[i] = int16_t(qlora_int8_code(x[i], inverse));
}

QLORA_VECTOR static void widenCodes(const int8_t *__restrict from,
                                    int64_t count, int16_t *__restrict to) {
  for (int64_t i = 0; i < count; ++i)
    to[i] = from[i];
}

/// Computes sums[4, 4], the dot products of four rows of a and four of w. A
/// multiply-add of pairs of i16 neither rounds nor saturates.
QLORA_VECTOR static void multiplyTile(const int16_t *__restrict a,
                                      const int16_t *__restrict w,
                                      int64_t depth, int32_t *__restrict sums,
                                      int64_t ld) {
  constexpr int kTile = Int8Plan::kTile;
  int32_t tile[kTile][kTile] = {};
  for (int64_t k = 0; k < depth; ++k)
#pragma GCC unroll 4
    for (int i = 0; i < kTile; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kTile; ++j)
        tile[i][j] += int(a[i * depth + k]) * int(w[j * depth + k]);
  for (int i = 0; i < kTile; ++i)
    for (int j = 0; j < kTile; ++j)
      sums[i * ld + j] = tile[i][j];
}

QLORA_VECTOR static void scaleLine(const int32_t *__restrict sums, float absmax,
                                   const float *__restrict scales,
                                   int64_t count, float *__restrict line) {
  for (int64_t i = 0; i < count; ++i)
    line[i] = qlora_int8_number(sums[i], absmax, scales[i]);
}

/// Rounds f32 values in place to values of `type`.
static void roundLine(qlora_dtype type, float *line, int64_t count) {
  for (int64_t i = 0; type != QLORA_DTYPE_F32 && i < count; ++i)
    line[i] = qlora_round_bf16(line[i]);
}

namespace {

class Int8Matmul final : public LibraryKernel {
public:
  explicit Int8Matmul(const KernelRequest &request)
      : plan(Int8Plan::of(request)), layout(StoredWeight::of(request).layout),
        aType(request.type("a")), cType(request.type("c")),
        lda(request.constant("lda")), ldc(request.constant("ldc")),
        outlier(qlora_outlier_bits(request.constantAsDouble("threshold"))),
        alpha(static_cast<float>(request.constantAsDouble("alpha"))),
        beta(static_cast<float>(request.constantAsDouble("beta"))) {}
  Status run(const LibraryKernelArgs &args) override;

private:
  void roundRows(const LibraryKernelArgs &args) const;
  int64_t leaveOut(void *workspace) const;
  void widenPanel(const uint8_t *w, int64_t first, int64_t columns,
                  int16_t *to) const;
  void runPanel(const LibraryKernelArgs &args, int64_t panel, int64_t slot,
                int64_t outliers) const;
  void addOutliers(const LibraryKernelArgs &args, int64_t first,
                   int64_t columns, int64_t row, int64_t rows, int64_t outliers,
                   const float *scales, float *line, float *extra) const;
  uint8_t *slotOf(void *workspace, int64_t slot) const {
    return plan.slots.in(workspace) + plan.slotBytes * uint64_t(slot);
  }

  Int8Plan plan;
  StoredLayout layout;
  qlora_dtype aType, cType;
  int64_t lda, ldc;
  uint32_t outlier;
  float alpha, beta;
};

} // namespace

/// Writes the codes and scales of a, and marks the columns with outliers.
void Int8Matmul::roundRows(const LibraryKernelArgs &args) const {
  void *const workspace = args.buffers[kWorkspace];
  uint8_t *const marks = plan.marks.in(workspace);
  std::memset(marks, 0, size_t(plan.k));
  const int64_t rows = (plan.m + plan.kTile - 1) / plan.kTile * plan.kTile;
  parallelFor(rows, plans::kGemmSlots, [&](int64_t row, int64_t slot) {
    int16_t *const codes = plan.codes.in<int16_t>(workspace) + row * plan.depth;
    if (row >= plan.m)
      return void(std::fill_n(codes, plan.depth, int16_t{0}));
    auto *const x = plan.row.in<float>(slotOf(workspace, slot));
    widen(aType, elementAt(args.buffers[kA], aType, row * lda), x, plan.k);
    uint32_t largest = 0;
    if (scanRow(x, plan.k, outlier, largest))
      for (int64_t i = 0; i < plan.k; ++i)
        if (qlora_is_outlier(qlora_to_bits(qlora_abs(x[i])), outlier))
          std::atomic_ref(marks[i]).store(1, std::memory_order_relaxed);
    const float absmax = qlora_from_bits(largest);
    plan.scales.in<float>(workspace)[row] = absmax;
    roundRow(x, plan.k, qlora_int8_inverse(absmax), codes);
    std::fill(codes + plan.k, codes + plan.depth, int16_t{0});
  });
}

/// Lists the marked columns and clears their codes. Returns their number.
int64_t Int8Matmul::leaveOut(void *workspace) const {
  const uint8_t *const marks = plan.marks.in(workspace);
  auto *const outliers = plan.outliers.in<int32_t>(workspace);
  int64_t count = 0;
  for (int64_t i = 0; i < plan.k; ++i)
    if (marks[i])
      outliers[count++] = int32_t(i);
  if (count > 0)
    parallelRanges(plan.m, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t i = 0; i < count; ++i)
          plan.codes.in<int16_t>(workspace)[row * plan.depth + outliers[i]] = 0;
    });
  return count;
}

/// Adds the products of the outlier columns, in column order, to `rows` rows of
/// c. `extra` is scratch for one row.
void Int8Matmul::addOutliers(const LibraryKernelArgs &args, int64_t first,
                             int64_t columns, int64_t row, int64_t rows,
                             int64_t outliers, const float *scales,
                             float *lines, float *extra) const {
  const auto *const codes =
      bufferOf<const int8_t>(args, kW) + layout.packed + first * plan.k;
  const auto *const numbers =
      plan.outliers.in<int32_t>(args.buffers[kWorkspace]);
  for (int64_t o = 0; o < outliers; ++o) {
    for (int64_t j = 0; j < columns; ++j)
      extra[j] = qlora_int8_weight(codes[j * plan.k + numbers[o]], scales[j]);
    roundLine(aType, extra, columns);
    for (int64_t i = 0; i < rows; ++i)
      addScaled(loadElement(aType, args.buffers[kA],
                            (row + i) * lda + numbers[o]),
                QLORA_DTYPE_F32, extra, lines + i * plan.columns, columns);
  }
}

/// Widens the codes of a panel of W from row `first` on. Pads tiles with zeros.
void Int8Matmul::widenPanel(const uint8_t *w, int64_t first, int64_t columns,
                            int16_t *to) const {
  const auto *const codes = reinterpret_cast<const int8_t *>(w + layout.packed);
  for (int64_t j = 0; j < plan.columns; ++j, to += plan.depth) {
    const int64_t count = j < columns ? plan.k : 0;
    widenCodes(codes + (first + j) * count, count, to);
    std::fill(to + count, to + plan.depth, int16_t{0});
  }
}

void Int8Matmul::runPanel(const LibraryKernelArgs &args, int64_t panel,
                          int64_t slot, int64_t outliers) const {
  void *const workspace = args.buffers[kWorkspace];
  uint8_t *const own = slotOf(workspace, slot);
  auto *const widened = plan.panel.in<int16_t>(own);
  auto *const sums = plan.sums.in<int32_t>(own);
  auto *const extra = plan.lines.in<float>(own);
  float *const lines = extra + 2 * plan.columns;
  const int64_t first = panel * plan.columns;
  const int64_t columns = std::min(plan.columns, plan.n - first);
  const auto *const w = bufferOf<const uint8_t>(args, kW);
  const auto *const scales =
      reinterpret_cast<const float *>(w + layout.scales) + first;
  widenPanel(w, first, columns, widened);
  const auto *const codes = plan.codes.in<int16_t>(workspace);
  const auto *const absmax = plan.scales.in<float>(workspace);
  for (int64_t row = 0; row < plan.m; row += plan.kRows) {
    const int64_t rows = std::min(plan.kRows, plan.m - row);
    for (int64_t i = 0; i < rows; i += plan.kTile)
      for (int64_t j = 0; j < columns; j += plan.kTile)
        multiplyTile(codes + (row + i) * plan.depth, widened + j * plan.depth,
                     plan.depth, sums + i * plan.columns + j, plan.columns);
    for (int64_t i = 0; i < rows; ++i) {
      float *const line = lines + i * plan.columns;
      scaleLine(sums + i * plan.columns, absmax[row + i], scales, columns,
                line);
      roundLine(aType, line, columns);
    }
    addOutliers(args, first, columns, row, rows, outliers, scales, lines,
                extra);
    for (int64_t i = 0; i < rows; ++i) {
      float *const line = lines + i * plan.columns;
      for (int64_t j = 0; alpha != 1 && j < columns; ++j)
        line[j] *= alpha;
      narrowSum(line, beta, cType,
                elementAt(args.buffers[kC], cType, (row + i) * ldc + first),
                columns);
    }
  }
}

Status Int8Matmul::run(const LibraryKernelArgs &args) {
  roundRows(args);
  const int64_t outliers = leaveOut(args.buffers[kWorkspace]);
  parallelFor(plan.panels(), plans::kGemmSlots,
              [&](int64_t panel, int64_t slot) {
                runPanel(args, panel, slot, outliers);
              });
  return Status::ok();
}

PreparedKernel dots::prepare(const KernelRequest &request, uint64_t) {
  return std::unique_ptr<LibraryKernel>(std::make_unique<Int8Matmul>(request));
}

} // namespace qlora::cpu::int8_matmul
