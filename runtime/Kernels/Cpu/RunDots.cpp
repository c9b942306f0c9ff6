// SPDX-License-Identifier: MIT

// Chooses products by the types and the CPU.

#include "runtime/Kernels/Cpu/RunDots.h"

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Rows.h"

namespace qlora {

RunDots RunDots::of(const StoredWeight &weight, int64_t rows, int64_t depth,
                    qlora_dtype rowType, qlora_dtype weightType) {
  constexpr qlora_dtype kBF16 = QLORA_DTYPE_BF16;
  RunDots dots;
  dots.weight = &weight;
  const bool isQuantized = weight.isQuantized();
  if (isQuantized ? !weight.decodeRun : weight.dtype != kBF16)
    return dots;
  const auto isWhole = [&](int64_t run) {
    return depth % run == 0 && (!isQuantized || weight.layout.block % run == 0);
  };
  if (rowType == kBF16 && weightType == kBF16 && isWhole(HalfDots::kRun))
    dots.half = HalfDots::find();
  const DecodeRun *const run =
      isQuantized ? weight.decodeRun : DecodeRun::find();
  if (!dots.half && run && rows <= run->mostDotRows && isWhole(kLanes)) {
    if (!isQuantized)
      dots.dense = run->addBF16Dots;
    else
      dots.whole = weightType == kBF16 ? run->addRoundedDots : run->addDots;
  }
  if (isQuantized)
    dots.splitRun = dots.half                         ? HalfDots::kRun
                    : dots.whole && run->splitsPairs ? kLanes
                                                      : 0;
  return dots;
}

/// Copies, of each `run` elements, first those of even index.
template <typename To, typename Convert>
static void split(const float *row, int64_t count, int64_t run, To *to,
                  Convert convert) {
  for (int64_t first = 0; first < count; first += run)
    for (int64_t i = 0; i < run / 2; ++i) {
      to[first + i] = convert(row[first + 2 * i]);
      to[first + run / 2 + i] = convert(row[first + 2 * i + 1]);
    }
}

void RunDots::arrange(const float *row, int64_t count, void *to) const {
  if (splitRun == 0)
    return narrow(row, half ? QLORA_DTYPE_BF16 : QLORA_DTYPE_F32, to, count);
  if (half)
    return split(row, count, splitRun, static_cast<uint16_t *>(to),
                 qlora_f32_to_bf16);
  split(row, count, splitRun, static_cast<float *>(to),
        [](float value) { return value; });
}

void RunDots::add(const void *bytes, int64_t first, int64_t count,
                  const DotRows<void> &rows) const {
  const auto *const numbers = static_cast<const uint16_t *>(bytes) + first;
  if (half) {
    const DotRows<uint16_t> halves = {static_cast<const uint16_t *>(rows.x),
                                      rows.stride, rows.count, rows.sums};
    return weight->isQuantized()
               ? half->addQuantized(weight->runOf(bytes, first, count), halves)
               : half->addDense(numbers, count, halves);
  }
  const DotRows<float> floats = {static_cast<const float *>(rows.x),
                                 rows.stride, rows.count, rows.sums};
  if (dense)
    return dense(numbers, count, floats);
  whole(weight->runOf(bytes, first, count), floats);
}

} // namespace qlora
