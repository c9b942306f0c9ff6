// SPDX-License-Identifier: MIT

// Chooses products by the types and the CPU.

#include "runtime/Kernels/Cpu/RunDots.h"

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Rows.h"

namespace qlora {

RunDots RunDots::of(const StoredWeight &weight, int64_t rows, int64_t depth,
                    qlora_dtype rowType, qlora_dtype weightType) {
  constexpr qlora_dtype kBF16 = QLORA_DTYPE_BF16, kF32 = QLORA_DTYPE_F32;
  RunDots dots;
  dots.weight = &weight;
  dots.rowType = rowType;
  const bool isQuantized = weight.isQuantized(), isF32 = weight.dtype == kF32;
  if (isQuantized ? !weight.decodeRun : weight.dtype != kBF16 && !isF32)
    return dots;
  const auto isWhole = [&](int64_t run) {
    return isF32 || (depth % run == 0 &&
                     (!isQuantized || weight.layout.block % run == 0));
  };
  if (rowType == kBF16 && weightType == kBF16 && isWhole(HalfDots::kRun))
    dots.half = HalfDots::find();
  if (dots.half) {
    dots.unit = isQuantized ? HalfDots::kCodes : HalfDots::kRun;
    return dots;
  }
  const DecodeRun *const run =
      isQuantized ? weight.decodeRun : DecodeRun::find();
  if (!run || rows > run->mostDotRows || !isWhole(kLanes))
    return dots;
  if (isQuantized)
    dots.addStored = weightType == kBF16 ? run->addRoundedDots : run->addDots;
  // f32 weights are not rounded.
  const bool isThere = isQuantized ? dots.addStored != nullptr
                       : isF32 ? weightType == kF32 && run->addF32Dots
                               : run->addBF16Dots != nullptr;
  dots.whole = isThere ? run : nullptr;
  return dots;
}

/// Copies, of each `Run` elements, first those of index 0, Parts, 2 Parts, ...,
/// then those that follow them.
template <int64_t Parts, int64_t Run, typename T>
static inline void split(const T *row, int64_t count, T *to) {
  constexpr int64_t kPart = Run / Parts;
  for (int64_t first = 0; first < count; first += Run)
    for (int64_t i = 0; i < kPart; ++i)
      for (int64_t part = 0; part < Parts; ++part)
        to[first + part * kPart + i] = row[first + i * Parts + part];
}

QLORA_VECTOR static void splitHalves(const uint16_t *__restrict row,
                                     int64_t count, uint16_t *__restrict to) {
  split<4, HalfDots::kCodes>(row, count, to);
}
QLORA_VECTOR static void splitFloats(const float *__restrict row, int64_t count,
                                     float *__restrict to) {
  split<2, RunDots::kLanes>(row, count, to);
}

void RunDots::arrange(qlora_dtype type, const void *row, int64_t count,
                      void *to) const {
  const int64_t width = padded(count);
  const bool isQuantized = weight->isQuantized();
  if (half) {
    uint16_t values[kMostElements];
    uint16_t *const out = isQuantized ? values : static_cast<uint16_t *>(to);
    convertRun(type, row, QLORA_DTYPE_BF16, out, count);
    std::fill(out + count, out + width, uint16_t(0));
    if (isQuantized)
      splitHalves(values, width, static_cast<uint16_t *>(to));
    return;
  }
  float values[kMostElements];
  const bool splits = isQuantized && whole && whole->splitsPairs;
  float *const out = splits ? values : static_cast<float *>(to);
  widen(type, row, out, count);
  for (int64_t i = 0; rowType != type && i < count; ++i)
    out[i] = qlora_round_bf16(out[i]);
  std::fill(out + count, out + width, 0.0f);
  if (splits)
    splitFloats(values, width, static_cast<float *>(to));
}

void RunDots::add(const void *bytes, const Runs &runs,
                  const DotRows<void> &rows) const {
  const auto stored = [&] {
    return StoredRuns{weight->runOf(bytes, runs.first, runs.count), runs.stride,
                      runs.outputs};
  };
  const auto dense = [&]<typename W>(const W *weights) {
    return DenseRuns<W>{weights + runs.first, runs.count, runs.stride,
                        runs.outputs};
  };
  const auto *const numbers = static_cast<const uint16_t *>(bytes);
  const auto *const floats = static_cast<const float *>(bytes);
  const bool isF32 = weight->dtype == QLORA_DTYPE_F32;
  if (half) {
    const DotRows<uint16_t> x = {static_cast<const uint16_t *>(rows.x),
                                 rows.stride, rows.count, rows.sums,
                                 rows.clears};
    return weight->isQuantized() ? half->addQuantized(stored(), x)
           : isF32               ? half->addF32(dense(floats), x)
                                 : half->addBF16(dense(numbers), x);
  }
  const DotRows<float> x = {static_cast<const float *>(rows.x), rows.stride,
                            rows.count, rows.sums, rows.clears};
  return weight->isQuantized() ? addStored(stored(), x)
         : isF32               ? whole->addF32Dots(dense(floats), x)
                               : whole->addBF16Dots(dense(numbers), x);
}

} // namespace qlora
