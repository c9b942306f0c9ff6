// SPDX-License-Identifier: MIT

// adapter_matmul: a dot product for each output of each row. Threads get ranges
// of outputs, which may begin and end within a row.

#include <algorithm>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Rows.h"

namespace qlora::cpu {

/// Partial sums of a dot product, whatever the vector width.
static constexpr int64_t kLanes = 16;
/// Outputs that are stored at once.
static constexpr int64_t kRun = 256;
/// Minimum multiplications of a thread.
static constexpr int64_t kGrain = 32768;

namespace {
enum Operand { kX, kW, kAdapter, kY };

struct AdapterMatmul {
  int64_t n, k, adapters, ldx, ldy;
  float beta;
  qlora_dtype xType, yType;

  void row(const LibraryKernelArgs &args, int64_t row, int64_t begin,
           int64_t end) const;
};
} // namespace

/// sums[j] := the product of x with the j-th of `count` rows of w, which are
/// `stride` elements apart.
template <float (*Load)(const void *, int64_t)>
static inline void dotRows(const void *x, const float *w, int64_t stride,
                           int64_t k, float *sums, int64_t count) {
  for (int64_t j = 0; j < count; ++j, w += stride) {
    float lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= k; i += kLanes)
      for (int64_t lane = 0; lane < kLanes; ++lane)
        lanes[lane] += Load(x, i + lane) * w[i + lane];
    for (int64_t lane = 0; i + lane < k; ++lane)
      lanes[lane] += Load(x, i + lane) * w[i + lane];
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
      for (int64_t lane = 0; lane < half; ++lane)
        lanes[lane] += lanes[lane + half];
    sums[j] = lanes[0];
  }
}

QLORA_VECTOR static void dotRowsF32(const void *x, const float *w,
                                    int64_t stride, int64_t k, float *sums,
                                    int64_t count) {
  dotRows<qlora_load_f32>(x, w, stride, k, sums, count);
}

QLORA_VECTOR static void dotRowsBF16(const void *x, const float *w,
                                     int64_t stride, int64_t k, float *sums,
                                     int64_t count) {
  dotRows<qlora_load_bf16>(x, w, stride, k, sums, count);
}

/// Computes outputs [begin, end) of a row.
void AdapterMatmul::row(const LibraryKernelArgs &args, int64_t row,
                        int64_t begin, int64_t end) const {
  const int64_t id = bufferOf<const int32_t>(args, kAdapter)[row];
  const bool hasAdapter = id >= 0 && id < adapters;
  if (!hasAdapter && beta == 1)
    return;
  const void *x = elementAt(args.buffers[kX], xType, row * ldx);
  const auto *w = bufferOf<const float>(args, kW);
  float sums[kRun] = {};
  for (int64_t first = begin; first < end; first += kRun) {
    const int64_t count = std::min(kRun, end - first);
    if (hasAdapter)
      (xType == QLORA_DTYPE_BF16 ? dotRowsBF16 : dotRowsF32)(
          x, w + (first * adapters + id) * k, adapters * k, k, sums, count);
    narrowSum(sums, beta, yType,
              elementAt(args.buffers[kY], yType, row * ldy + first), count);
  }
}

PreparedKernel adapter_matmul::lanes::prepare(const KernelRequest &r,
                                              uint64_t) {
  const int64_t m = r.constant("m");
  const AdapterMatmul product = {
      r.constant("n"),        r.constant("k"),
      r.constant("adapters"), r.constant("ldx"),
      r.constant("ldy"),      float(r.constantAsDouble("beta")),
      r.type("x"),            r.type("y")};
  return makeKernel([=](const LibraryKernelArgs &args) {
    const int64_t n = product.n;
    parallelRanges(m * n, 1 + kGrain / product.k,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin / n; row * n < end; ++row)
                       product.row(args, row,
                                   std::max<int64_t>(begin - row * n, 0),
                                   std::min(end - row * n, n));
                   });
    return Status::ok();
  });
}

} // namespace qlora::cpu
