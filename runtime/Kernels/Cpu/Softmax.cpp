// SPDX-License-Identifier: MIT

// Row operations in sixteen lanes: sums have the same order on every CPU.

#include "runtime/Kernels/Cpu/Softmax.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Rows.h"

#define QLORA_LANES_INLINE static inline __attribute__((always_inline))

namespace qlora {

// Lanes -----------------------------------------------------------------------
//
// Sixteen values that are computed together, with the vector extension of GCC
// and clang. It works on all instruction sets; with AVX-512, the sixteen values
// are one register. Used in loops that compilers do not vectorise well. Callers
// are QLORA_VECTOR; these functions are inlined into each variant of a caller.

inline constexpr int64_t kLanes = 16;

using FloatLanes = float __attribute__((vector_size(4 * kLanes)));
using BitLanes = uint32_t __attribute__((vector_size(4 * kLanes)));
using HalfLanes = uint16_t __attribute__((vector_size(2 * kLanes)));

QLORA_LANES_INLINE void loadLanes(const float *from, FloatLanes &to) {
  std::memcpy(&to, from, sizeof(to));
}
QLORA_LANES_INLINE void storeLanes(const FloatLanes &from, float *to) {
  std::memcpy(to, &from, sizeof(from));
}

/// Rotates lanes: lane i of the result is lane (i + by) % 16 of `from`.
#define QLORA_ROTATED(from, by)                                                \
  __builtin_shufflevector(from, from, (0 + by) % 16, (1 + by) % 16,            \
                          (2 + by) % 16, (3 + by) % 16, (4 + by) % 16,         \
                          (5 + by) % 16, (6 + by) % 16, (7 + by) % 16,         \
                          (8 + by) % 16, (9 + by) % 16, (10 + by) % 16,        \
                          (11 + by) % 16, (12 + by) % 16, (13 + by) % 16,      \
                          (14 + by) % 16, (15 + by) % 16)

/// Returns the sum of all lanes, added pairwise in a fixed order.
QLORA_LANES_INLINE float sumOfLanes(FloatLanes lanes) {
  lanes += QLORA_ROTATED(lanes, 8);
  lanes += QLORA_ROTATED(lanes, 4);
  lanes += QLORA_ROTATED(lanes, 2);
  return lanes[0] + lanes[1];
}

/// b := max(a, b) in each lane; b stays if either value is NaN.
QLORA_LANES_INLINE void raiseLanes(const FloatLanes &a, FloatLanes &b) {
  b = a > b ? a : b;
}
QLORA_LANES_INLINE float maximumOfLanes(FloatLanes lanes) {
  raiseLanes(QLORA_ROTATED(lanes, 8), lanes);
  raiseLanes(QLORA_ROTATED(lanes, 4), lanes);
  raiseLanes(QLORA_ROTATED(lanes, 2), lanes);
  raiseLanes(QLORA_ROTATED(lanes, 1), lanes);
  return lanes[0];
}

/// Rounds to bf16 as qlora_f32_to_bf16 does.
QLORA_LANES_INLINE void storeLanesBF16(const FloatLanes &from, uint16_t *to) {
  BitLanes bits;
  std::memcpy(&bits, &from, sizeof(bits));
  const BitLanes rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const BitLanes quiet = (bits >> 16) | 0x40u;
  const HalfLanes halves = __builtin_convertvector(
      (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded, HalfLanes);
  std::memcpy(to, &halves, sizeof(halves));
}

// Rows ------------------------------------------------------------------------

/// x := e^x, like qlora_exp, but 0 for x below -87 and infinity for results
/// from 2^127.5 on. So n of the factor 2^n is small enough for one f32, and
/// qlora_exp's second factor is not needed.
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

/// Loads the last `count` values of a run, and `fill` into the other lanes.
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

/// Stores the first `count` lanes.
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

/// Writes e^(values[i] - shift) to `wide` and `narrow` if not null; returns the
/// sum.
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

/// x := tanh x within 2 ulp, from e^2x. Near 0, where that formula cancels,
/// uses an odd polynomial (Moshier, Cephes tanhf).
QLORA_LANES_INLINE void tanhLanes(FloatLanes &x) {
  const FloatLanes size = x < 0.0f ? -x : x;
  const FloatLanes square = x * x;
  FloatLanes p = square * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  p = p * square * x + x;
  FloatLanes power = size + size;
  exponentiateLanes(power);
  const FloatLanes far = 1.0f - 2.0f / (power + 1.0f);
  x = size < 0.625f ? p : x < 0.0f ? -far : far;
}

QLORA_VECTOR void capRun(float *values, int64_t count, float cap,
                         float *slopes) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t rest = count - i;
    FloatLanes t;
    if (rest >= kLanes)
      loadLanes(values + i, t);
    else
      loadRest(values + i, rest, 0.0f, t);
    t = t / cap;
    tanhLanes(t);
    const FloatLanes slope = 1.0f - t * t;
    t = t * cap;
    const auto bytes = static_cast<size_t>(std::min(rest, kLanes)) * 4;
    std::memcpy(values + i, &t, bytes);
    if (slopes)
      std::memcpy(slopes + i, &slope, bytes);
  }
}

QLORA_VECTOR void multiplyRun(float *a, const float *b, int64_t count,
                              uint16_t *narrow) {
  FloatLanes left, right;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t rest = std::min(count - i, kLanes);
    loadRest(a + i, rest, 0.0f, left);
    loadRest(b + i, rest, 0.0f, right);
    left = left * right;
    storeRest(left, rest, narrow ? nullptr : a + i,
              narrow ? narrow + i : nullptr);
  }
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
