// SPDX-License-Identifier: MIT

// Sums are made in sixteen lanes, so that no instruction set changes their
// order.

#include "runtime/Kernels/Cpu/Softmax.h"

#include <limits>

#include "runtime/Kernels/Cpu/Lanes.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Rows.h"

namespace qlora {

/// e^x as qlora_exp, but with one power of two instead of two: 0 below -87,
/// where results are subnormal, and infinity from 2^127.5 on.
QLORA_LANES_INLINE void exponentiateLanes(FloatLanes &x) {
  const FloatLanes clamped = x > 89.0f ? FloatLanes{} + 89.0f : x;
  const FloatLanes shifted = clamped * 1.44269504f + 12582912.0f;
  const FloatLanes n = shifted - 12582912.0f;
  const FloatLanes r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  FloatLanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  BitLanes bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits - (0x4b400000u - 127u)) << 23;
  FloatLanes scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  x = x < -87.0f ? FloatLanes{} : p * scale;
}

/// What is left of a run, and `fill` in the lanes beyond.
QLORA_LANES_INLINE void loadRest(const float *from, int64_t count, float fill,
                                 FloatLanes &to) {
  float rest[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane)
    rest[lane] = lane < count ? from[lane] : fill;
  loadLanes(rest, to);
}

static constexpr float kNone = -std::numeric_limits<float>::infinity();

QLORA_LANES_INLINE float maximumOfRun(const float *values, int64_t count) {
  FloatLanes maxima = FloatLanes{} + kNone, next;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    loadLanes(values + i, next);
    raiseLanes(next, maxima);
  }
  if (i < count) {
    loadRest(values + i, count - i, kNone, next);
    raiseLanes(next, maxima);
  }
  return maximumOfLanes(maxima);
}

QLORA_VECTOR void maximaOfRows(const float *values, int64_t rows,
                               int64_t columns, float *maxima) {
  for (int64_t row = 0; row < rows; ++row)
    maxima[row] = maximumOfRun(values + row * columns, columns);
}

/// The first `count` lanes.
QLORA_LANES_INLINE void storeRest(const FloatLanes &lanes, int64_t count,
                                  float *wide, uint16_t *narrow) {
  if (wide)
    std::memcpy(wide, &lanes, static_cast<size_t>(count) * 4);
  if (!narrow)
    return;
  uint16_t halves[kLanes];
  storeLanesBF16(lanes, halves);
  std::memcpy(narrow, halves, static_cast<size_t>(count) * 2);
}

/// e^(values[i] - shift) into `wide` and `narrow`, each unless null; returns
/// their sum.
QLORA_LANES_INLINE float exponentiateRun(const float *values, int64_t count,
                                         float shift, float *wide,
                                         uint16_t *narrow) {
  FloatLanes sums = {}, next;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    loadLanes(values + i, next);
    next -= shift;
    exponentiateLanes(next);
    sums += next;
    if (wide)
      storeLanes(next, wide + i);
    if (narrow)
      storeLanesBF16(next, narrow + i);
  }
  if (i < count) {
    loadRest(values + i, count - i, kNone, next);
    next -= shift;
    exponentiateLanes(next);
    sums += next;
    storeRest(next, count - i, wide ? wide + i : nullptr,
              narrow ? narrow + i : nullptr);
  }
  return sumOfLanes(sums);
}

template <bool HasWide, bool HasNarrow>
QLORA_LANES_INLINE void exponentiateAll(const ExponentialRows &r) {
  for (int64_t row = 0; row < r.rows; ++row) {
    const int64_t at = row * r.columns;
    const float sum = exponentiateRun(r.values + at, r.columns, r.shifts[row],
                                      HasWide ? r.wide + at : nullptr,
                                      HasNarrow ? r.narrow + at : nullptr);
    if (r.sums)
      r.sums[row] = sum;
  }
}

QLORA_VECTOR void exponentiateRows(const ExponentialRows &rows) {
  if (rows.wide && rows.narrow)
    return exponentiateAll<true, true>(rows);
  if (rows.narrow)
    return exponentiateAll<false, true>(rows);
  if (rows.wide)
    return exponentiateAll<true, false>(rows);
  return exponentiateAll<false, false>(rows);
}

QLORA_VECTOR float dotProduct(const float *a, const float *b, int64_t count) {
  FloatLanes sums = {}, left, right;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    loadLanes(a + i, left);
    loadLanes(b + i, right);
    sums += left * right;
  }
  if (i < count) {
    loadRest(a + i, count - i, 0.0f, left);
    loadRest(b + i, count - i, 0.0f, right);
    sums += left * right;
  }
  return sumOfLanes(sums);
}

QLORA_VECTOR void scaleRun(float *values, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i)
    values[i] *= factor;
}

QLORA_LANES_INLINE void scoreGradientRun(const float *probabilities,
                                         float *gradients, int64_t count,
                                         float mean, float scale,
                                         uint16_t *narrow) {
  FloatLanes p, gradient;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    loadLanes(probabilities + i, p);
    loadLanes(gradients + i, gradient);
    gradient = scale * p * (gradient - mean);
    if (narrow)
      storeLanesBF16(gradient, narrow + i);
    else
      storeLanes(gradient, gradients + i);
  }
  if (i == count)
    return;
  loadRest(probabilities + i, count - i, 0.0f, p);
  loadRest(gradients + i, count - i, 0.0f, gradient);
  gradient = scale * p * (gradient - mean);
  storeRest(gradient, count - i, narrow ? nullptr : gradients + i,
            narrow ? narrow + i : nullptr);
}

QLORA_VECTOR void scoreGradients(const float *probabilities, float *gradients,
                                 int64_t rows, int64_t columns,
                                 const float *means, float scale,
                                 uint16_t *narrow) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * columns;
    scoreGradientRun(probabilities + at, gradients + at, columns, means[row],
                     scale, narrow ? narrow + at : nullptr);
  }
}

} // namespace qlora
