// SPDX-License-Identifier: MIT

// The arithmetic of bitsandbytes' LLM.int8 matmul (MatMul8bitLt, forward;
// Dettmers et al., 2022). Bits equal those of its CPU ops, except for the order
// of the f32 sum over outliers. The CPU and CUDA kernels and the tests'
// reference share it.
//
//   x' = float16(x)
//   a column is an outlier where |x'| >= threshold in any row
//   absmax[i] = max |x'[i, :]| of values below the threshold
//   q[i, :]   = round(x'[i, :] * (127 / absmax[i])), 0 in outlier columns
//   y[i, j]   = (q[i, :] . codes[j, :]) * (absmax[i] * scale[j]) / 127^2
//               rounded to x's type,
//               + x[i, outliers] . W[j, outliers], rounded again
//
// where W = codes * scale / 127, rounded to x's type. The integer sum is exact,
// so the first two lines of y give the same bits everywhere. A NaN, or an
// infinity that is not an outlier, makes its row of y NaN.
//
// Include Rows.h first, or on a GPU the definitions of its functions.

#ifndef QLORA_RUNTIME_KERNELS_MATH_INT8MATMUL_H
#define QLORA_RUNTIME_KERNELS_MATH_INT8MATMUL_H

#include "runtime/Kernels/Rows.h"

/// 1 / 127^2 in bitsandbytes, with a typo: 6.2000124e-05 would be right.
#define QLORA_INT8_PRODUCT_SCALE 6.200124e-05f
#define QLORA_INT8_WEIGHT_SCALE 7.874015718698502e-3f

/// Maximum terms of an int32 sum: 2^17 * 127 * 128 is below 2^31.
constexpr int64_t kMostInt8Depth = int64_t(1) << 17;

/// Bits of f32 infinity. Magnitudes are compared as bits; NaN is largest.
constexpr uint32_t kInfinityBits = 0x7f800000u;

/// Returns the bits of the smallest outlier magnitude: the threshold, rounded
/// to float16 because x is compared in float16. Threshold 0 disables outliers.
QLORA_INLINE uint32_t qlora_outlier_bits(double threshold) {
  return threshold == 0 ? 0xffffffffu
                        : qlora_to_bits(qlora_round_f16(float(threshold)));
}
QLORA_INLINE bool qlora_is_outlier(uint32_t magnitude, uint32_t from) {
  return magnitude >= from && magnitude <= kInfinityBits;
}

QLORA_INLINE float qlora_int8_inverse(float absmax) {
  return 127.0f * (1.0f / absmax);
}
/// Returns the integer code of x; 0 for the NaN that a row of zeros gives.
QLORA_INLINE int qlora_int8_code(float x, float inverse) {
  const float code = qlora_round_even(x * inverse);
  return qlora_abs(code) <= 127.0f ? int(code) : 0;
}
QLORA_INLINE float qlora_int8_number(int32_t sum, float absmax, float scale) {
  return float(sum) * (absmax * scale) * QLORA_INT8_PRODUCT_SCALE;
}
QLORA_INLINE float qlora_int8_weight(int code, float scale) {
  return float(code) * scale * QLORA_INT8_WEIGHT_SCALE;
}

#endif // QLORA_RUNTIME_KERNELS_MATH_INT8MATMUL_H
