// SPDX-License-Identifier: MIT

// Functions called by generated kernels: element loads and stores, and the
// scalar functions of row regions. Every function is branch-free and calls no
// library, so loops over columns vectorise and kernel modules import no symbol.
//
// Includes only <stdint.h>, runtime/ABI/kernel.h and Math/Philox.h, which
// include no other headers. C++20 for g++ and clang. Compile with
// -ffp-contract=off and without -ffast-math (rounding adds 1.5 * 2^23).
//
// Errors are relative to the exact value, in f32 ulp, over all finite arguments
// unless a range is given; tests/conformance/RowsTest.cpp measures them. On
// CUDA some functions use special instructions (Cuda/Device/Instructions.cuh),
// with the bound given after "on CUDA".

#ifndef QLORA_RUNTIME_KERNELS_ROWS_H
#define QLORA_RUNTIME_KERNELS_ROWS_H

#include <stdint.h>

#include "runtime/ABI/kernel.h"
#include "runtime/Kernels/Math/Philox.h"

#ifdef __CUDA_ARCH__
#include "runtime/Kernels/Cuda/Device/Instructions.cuh"
#ifdef __NVCC__
#define QLORA_CONVERTS ///< conversions to and from 16 bits use instructions
#endif
#endif

QLORA_INLINE float qlora_from_bits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
QLORA_INLINE uint32_t qlora_to_bits(float value) {
  return __builtin_bit_cast(uint32_t, value);
}

// Load and store ------------------------------------------------------------
//
// bf16 and f16 are stored as uint16_t. Stores round to nearest, ties to even. A
// NaN stays a quiet NaN (0x7fff on CUDA). Stores to int8_t saturate, and store
// a NaN as 0.

QLORA_INLINE float qlora_load_f32(const void *p, int64_t i) {
  return static_cast<const float *>(p)[i];
}
QLORA_INLINE void qlora_store_f32(void *p, int64_t i, float value) {
  static_cast<float *>(p)[i] = value;
}
QLORA_INLINE int32_t qlora_load_i32(const void *p, int64_t i) {
  return static_cast<const int32_t *>(p)[i];
}
QLORA_INLINE void qlora_store_i32(void *p, int64_t i, int32_t value) {
  static_cast<int32_t *>(p)[i] = value;
}

QLORA_INLINE float qlora_bf16_to_f32(uint16_t half) {
  return qlora_from_bits(uint32_t(half) << 16);
}
QLORA_INLINE uint16_t qlora_f32_to_bf16(float value) {
#ifdef QLORA_CONVERTS
  return qlora_narrow_bf16(value);
#else
  const uint32_t bits = qlora_to_bits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
#endif
}
/// Returns `value` rounded to bf16.
QLORA_INLINE float qlora_round_bf16(float value) {
#ifdef QLORA_CONVERTS
  return qlora_bf16_to_f32(qlora_narrow_bf16(value));
#else
  // Uses only 32-bit operations, so a vectorised loop keeps its lane count.
  const uint32_t bits = qlora_to_bits(value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1);
  const uint32_t quiet = bits | 0x400000u;
  const bool isNaN = (bits & 0x7fffffffu) > 0x7f800000u;
  return qlora_from_bits((isNaN ? quiet : rounded) & 0xffff0000u);
#endif
}
QLORA_INLINE float qlora_load_bf16(const void *p, int64_t i) {
  return qlora_bf16_to_f32(static_cast<const uint16_t *>(p)[i]);
}
QLORA_INLINE void qlora_store_bf16(void *p, int64_t i, float value) {
  static_cast<uint16_t *>(p)[i] = qlora_f32_to_bf16(value);
}

QLORA_INLINE float qlora_f16_to_f32(uint16_t half) {
#ifdef QLORA_CONVERTS
  return qlora_widen_f16(half);
#else
  // A multiplication rebiases the exponent exactly, also for subnormals.
  const uint32_t shifted = uint32_t(half & 0x7fffu) << 13;
  const uint32_t finite = qlora_to_bits(qlora_from_bits(shifted) * 0x1p112f);
  const uint32_t special = shifted | 0x7f800000u;
  const uint32_t magnitude = shifted >= 0x0f800000u ? special : finite;
  return qlora_from_bits(magnitude | uint32_t(half & 0x8000u) << 16);
#endif
}
QLORA_INLINE uint16_t qlora_f32_to_f16(float value) {
#ifdef QLORA_CONVERTS
  return qlora_narrow_f16(value);
#else
  const uint32_t bits = qlora_to_bits(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t odd = (magnitude >> 13) & 1;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
  // Adding 0.5 rounds a subnormal to 10 bits, in the low bits of the sum.
  const uint32_t subnormal =
      qlora_to_bits(qlora_from_bits(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t half = magnitude >= 0x477ff000u ? special : finite;
  return uint16_t(half | (bits >> 16 & 0x8000u));
#endif
}
QLORA_INLINE float qlora_round_f16(float value) {
  return qlora_f16_to_f32(qlora_f32_to_f16(value));
}
QLORA_INLINE float qlora_load_f16(const void *p, int64_t i) {
  return qlora_f16_to_f32(static_cast<const uint16_t *>(p)[i]);
}
QLORA_INLINE void qlora_store_f16(void *p, int64_t i, float value) {
  static_cast<uint16_t *>(p)[i] = qlora_f32_to_f16(value);
}

QLORA_INLINE float qlora_load_i8(const void *p, int64_t i) {
  return static_cast<const int8_t *>(p)[i];
}
QLORA_INLINE void qlora_store_i8(void *p, int64_t i, float value) {
  const float number = value == value ? value : 0.0f;
  const float above = number < -128.0f ? -128.0f : number;
  const float clamped = above > 127.0f ? 127.0f : above;
  // Adding 1.5 * 2^23 rounds to an integer, in the low bits of the sum.
  static_cast<int8_t *>(p)[i] = int8_t(qlora_to_bits(clamped + 12582912.0f));
}

// Scalar functions ------------------------------------------------------------

QLORA_INLINE float qlora_max(float a, float b) { return a > b ? a : b; }
QLORA_INLINE float qlora_abs(float x) {
  return qlora_from_bits(qlora_to_bits(x) & 0x7fffffffu);
}

/// Returns `magnitude` with the sign of x.
QLORA_INLINE float qlora_signed_as(float magnitude, float x) {
  return qlora_from_bits(qlora_to_bits(magnitude) |
                         (qlora_to_bits(x) & 0x80000000u));
}

/// Rounds to the nearest integer, ties to even. Exact; keeps NaN and infinity.
QLORA_INLINE float qlora_round_even(float x) {
  const float magnitude = qlora_abs(x);
  const float rounded = (magnitude + 0x1p23f) - 0x1p23f;
  return qlora_signed_as(magnitude < 0x1p23f ? rounded : magnitude, x);
}

/// sqrt x, correctly rounded; NaN below zero. The libm function would set
/// errno, which needs a call and prevents vectorisation.
QLORA_INLINE float qlora_sqrt(float x) {
#ifdef __clang__
  return __builtin_elementwise_sqrt(x);
#else
  return __builtin_sqrtf(x);
#endif
}
/// 1 / sqrt x within 1.5 ulp: two correctly rounded steps. On CUDA the relative
/// error is below 2^-22.9, and subnormal inputs give infinity.
QLORA_INLINE float qlora_rsqrt(float x) {
#ifdef __CUDA_ARCH__
  return qlora_inverse_root(x);
#else
  return 1.0f / qlora_sqrt(x);
#endif
}

/// e^x within 1 ulp (subnormal results: within one unit of 2^-149); infinity
/// above 88.73, 0 below -103.98, NaN for NaN.
QLORA_INLINE float qlora_exp(float x) {
  const float above = x > 89.0f ? 89.0f : x;
  const float clamped = above < -104.0f ? -104.0f : above;
  // n = round(x / ln 2); r = x - n ln 2, with ln 2 as a sum of two f32; |r| <=
  // 0.3466.
  const float shifted = clamped * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n as two factors, since n is in [-150, 128].
  const int32_t exponent = int32_t(qlora_to_bits(shifted) - 0x4b400000u);
  const int32_t half = exponent >> 1;
  const float scale1 = qlora_from_bits(uint32_t(half + 127) << 23);
  const float scale2 = qlora_from_bits(uint32_t(exponent - half + 127) << 23);
  return p * scale1 * scale2;
}

/// ln x within 1 ulp; -infinity for 0, NaN for negative x (Cephes).
QLORA_INLINE float qlora_log(float x) {
  const bool isSmall = x < 0x1p-126f;
  const float normal = isSmall ? x * 0x1p23f : x;
  const uint32_t bits = qlora_to_bits(normal) - 0x3f3504f3u; // minus sqrt(1/2)
  const float e = float((int32_t(bits) >> 23) - (isSmall ? 23 : 0));
  const float r = qlora_from_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  const float z = r * r;
  float p = 7.0376836292e-2f;
  p = p * r - 1.1514610310e-1f;
  p = p * r + 1.1676998740e-1f;
  p = p * r - 1.2420140846e-1f;
  p = p * r + 1.4249322787e-1f;
  p = p * r - 1.6668057665e-1f;
  p = p * r + 2.0000714765e-1f;
  p = p * r - 2.4999993993e-1f;
  p = p * r + 3.3333331174e-1f;
  const float tail = p * r * z + e * -2.12194440e-4f - 0.5f * z;
  const float finite = (r + tail) + e * 0.693359375f;
  const float positive = x < qlora_from_bits(0x7f800000u) ? finite : x;
  const float other = qlora_from_bits(x == 0.0f ? 0xff800000u : 0x7fc00000u);
  return x > 0.0f ? positive : other;
}

/// tanh x, 2 ulp: a polynomial near 0 (Cephes), else 1 - 2 / (e^2|x| + 1).
QLORA_INLINE float qlora_tanh(float x) {
  const float size = qlora_abs(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = p * z * size + size;
  const float far = 1.0f - 2.0f / (qlora_exp(2.0f * size) + 1.0f);
  return qlora_signed_as(size < 0.625f ? near : far, x);
}

/// erf x, 2.5 ulp: a polynomial near 0 (Cephes), else 1 - erfc (Chebyshev).
QLORA_INLINE float qlora_erf(float x) {
  const float size = qlora_abs(x), z = x * x;
  float p = 7.853861353153693e-5f;
  p = p * z - 8.010193625184903e-4f;
  p = p * z + 5.188327685732524e-3f;
  p = p * z - 2.685381193529856e-2f;
  p = p * z + 1.128358514861418e-1f;
  p = p * z - 3.761262582423300e-1f;
  p = p * z + 1.128379165726710e+0f;
  const float t = 1.0f / (1.0f + 0.5f * size);
  float q = 0.17087277f;
  q = q * t - 0.82215223f;
  q = q * t + 1.48851587f;
  q = q * t - 1.13520398f;
  q = q * t + 0.27886807f;
  q = q * t - 0.18628806f;
  q = q * t + 0.09678418f;
  q = q * t + 0.37409196f;
  q = q * t + 1.00002368f;
  q = q * t - 1.26551223f;
  const float far = 1.0f - t * qlora_exp(q - z);
  return qlora_signed_as(size < 1.0f ? p * size : far, x);
}

/// 1 / (1 + e^-x) within 2.5 ulp. On CUDA the relative error is (4 + 5/8 |x|)
/// 2^-23 above -87; below, the absolute error is less than 2^-125. Error terms,
/// in units of 2^-23: 2 and 1 from the instructions, 1/2 from the sum, |x| / 2
/// from the product, |x| / 9 from the constant log2(e).
QLORA_INLINE float qlora_sigmoid(float x) {
#ifdef __CUDA_ARCH__
  return qlora_reciprocal(1.0f + qlora_exp2(x * -1.44269504f));
#else
  const float e = qlora_exp(-qlora_abs(x));
  const float numerator = x < 0.0f ? e : 1.0f;
  return numerator / (1.0f + e);
#endif
}

/// sin and cos of x reduced to [-pi/4, pi/4], and the quadrant of x. The
/// reduction is in f64, by pi/2 as a sum of three 33-bit constants. It is exact
/// while the quadrant index is below 2^20: for |x| up to 1.6e6.
struct qlora_sine_parts {
  double sine, cosine;
  uint32_t quadrant;
};
QLORA_INLINE qlora_sine_parts qlora_reduce_sine(float x) {
  const double shifted = double(x) * 0.63661977236758134 + 0x1.8p52;
  const double n = shifted - 0x1.8p52;
  const double r = ((double(x) - n * 1.57079632673412561417e+00) -
                    n * 6.07710050630396597660e-11) -
                   n * 2.02226624871116645580e-21;
  const double z = r * r;
  double s = 2.7557313707070068e-06;
  s = s * z - 1.9841269829857950e-04;
  s = s * z + 8.3333333333224896e-03;
  s = s * z - 1.6666666666666632e-01;
  double c = -2.7557314351390663e-07;
  c = c * z + 2.4801587289476729e-05;
  c = c * z - 1.3888888888874110e-03;
  c = c * z + 4.1666666666666602e-02;
  c = c * z - 0.5;
  const uint64_t bits = __builtin_bit_cast(uint64_t, shifted);
  return {s * z * r + r, c * z + 1.0, uint32_t(bits)};
}

/// sin x within 1 ulp for |x| <= 1.6e6.
QLORA_INLINE float qlora_sin(float x) {
  const qlora_sine_parts parts = qlora_reduce_sine(x);
  const double value = parts.quadrant & 1 ? parts.cosine : parts.sine;
  return float(parts.quadrant & 2 ? -value : value);
}
/// cos x within 1 ulp for |x| <= 1.6e6.
QLORA_INLINE float qlora_cos(float x) {
  const qlora_sine_parts parts = qlora_reduce_sine(x);
  const double value = parts.quadrant & 1 ? parts.sine : parts.cosine;
  return float((parts.quadrant + 1) & 2 ? -value : value);
}

// Sums and maxima over a row --------------------------------------------------

/// Returns the pairwise sum of the 16 partial sums of a row (column c was added
/// to lane c mod 16). The order is fixed.
QLORA_INLINE float qlora_sum_lanes(const float (&lanes)[16]) {
  float sums[8];
  for (int i = 0; i < 8; ++i)
    sums[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i)
    sums[i] += sums[i + 4];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

/// Returns the larger value; NaN if either is NaN.
QLORA_INLINE float qlora_maximum(float a, float b) {
  const float larger = a > b ? a : b;
  return a != a ? a : larger;
}
/// Returns minus infinity, the neutral element of a maximum.
QLORA_INLINE float qlora_lowest() { return qlora_from_bits(0xff800000u); }
QLORA_INLINE void qlora_lowest_lanes(float (&lanes)[16]) {
  for (int i = 0; i < 16; ++i)
    lanes[i] = qlora_lowest();
}
QLORA_INLINE float qlora_max_lanes(const float (&lanes)[16]) {
  float largest = lanes[0];
  for (int i = 1; i < 16; ++i)
    largest = qlora_maximum(largest, lanes[i]);
  return largest;
}

#endif // QLORA_RUNTIME_KERNELS_ROWS_H
