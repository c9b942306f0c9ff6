// SPDX-License-Identifier: MIT

// The format of an i8 cache of keys or values. A head of a token has codes from
// -127 to 127 and a scale, and element i is codes[i] * scale, rounded to f32:
//
//   scale    = absmax * (1 / 127)        absmax: largest magnitude of the head
//   codes[i] = round(x[i] * (127 / absmax))
//
// The error is at most absmax * kCacheInt8Error. Magnitudes below 2^-120 become
// 0 if all of the head are. If a head has a NaN or an infinity, its scale is
// not finite, and its elements are NaN.
//
// Memory of a cache with `rows` rows of `heads` heads: the codes of all rows,
// i8 [rows, heads * dim], then the scales, f32 [rows, heads]. So a row takes
// heads * (dim + 4) bytes. dim is a multiple of 4, which aligns the scales.
//
// Include Rows.h first, or on a GPU the definitions of its functions.

#ifndef QLORA_RUNTIME_KERNELS_MATH_CACHEINT8_H
#define QLORA_RUNTIME_KERNELS_MATH_CACHEINT8_H

#include "runtime/Kernels/Rows.h"

/// Bytes of a head's scale. dim must be a multiple of this.
constexpr int64_t kCacheScaleBytes = 4;

/// Returns the bytes of a row of `columns` codes with `heads` scales.
constexpr int64_t int8CacheColumns(int64_t columns, int64_t heads) {
  return columns + kCacheScaleBytes * heads;
}

/// Half a step of the codes, relative to absmax, and a few roundings of f32.
constexpr double kCacheInt8Error = 0.5 / 127 + 0x1p-21;

QLORA_INLINE float qlora_cache_scale(float absmax) {
  return absmax * (1.0f / 127.0f);
}
QLORA_INLINE float qlora_cache_inverse(float absmax) {
  return absmax > 0x1p-120f ? 127.0f / absmax : 0.0f;
}
/// Returns the code of x; 0 for a NaN, whose head has a scale of NaN.
QLORA_INLINE int qlora_cache_code(float x, float inverse) {
  const float code = qlora_round_even(x * inverse);
  return code >= -127.0f && code <= 127.0f ? int(code) : 0;
}
QLORA_INLINE float qlora_cache_number(int code, float scale) {
  return float(code) * scale;
}

#endif // QLORA_RUNTIME_KERNELS_MATH_CACHEINT8_H
