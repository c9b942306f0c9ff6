// SPDX-License-Identifier: MIT

// Arithmetic of NF4 quantization, per element, for the CPU and for CUDA. Both
// give the bytes of bitsandbytes 0.50 on a CPU.
//
// A block's scale is the largest magnitude of its elements. Elements are scaled
// to [-1, 1]. An element's code is the number of midpoints below it. A midpoint
// lies between two neighbours of the code book.
//
// Double quantization replaces the scales by one-byte codes. It first subtracts
// the mean of all scales of the tensor, an f64 sum in one order on all devices.
// Partial sum p of kNF4MeanPartials adds the scales p, p + kNF4MeanPartials,
// ... in order. Then the upper half of the partial sums is added to the lower
// half, until one is left. The sum is divided by the number of scales and
// rounded once. Each run of 256 shifted scales is multiplied by 1 / its largest
// magnitude. Each product is put into one of 65,536 buckets over [-1, 1]. The
// code is the dynamic map's entry nearest to the bucket.
//
// Every operation is rounded separately. CUDA uses named intrinsics, because
// nvcc contracts; CPU callers are compiled with -ffp-contract=off. Machines
// differ in the bits of a computed NaN, so it gets fixed bits.

#ifndef QLORA_RUNTIME_KERNELS_MATH_NF4QUANTIZE_H
#define QLORA_RUNTIME_KERNELS_MATH_NF4QUANTIZE_H

#include "runtime/Kernels/Math/CodeBooks.h"
#include "runtime/Kernels/Rows.h"

namespace qlora {

inline constexpr int kNF4Midpoints = 15;
/// Number of partial sums of the scales' mean; a power of two.
inline constexpr int kNF4MeanPartials = 1024;
inline constexpr int kNF4MapEntries = 256;
/// Elements of an 8-bit optimizer state that share a scale.
inline constexpr int kStateBlock = 256;

/// Returns the midpoint between NF4's values for `code` and `code` + 1.
QLORA_HOST_DEVICE constexpr float nf4Midpoint(int code) {
  return (nf4Value(code) + nf4Value(code + 1)) / 2.0f;
}

// Rounding --------------------------------------------------------------------

QLORA_HOST_DEVICE inline float nf4Multiply(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
QLORA_HOST_DEVICE inline float nf4Add(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
QLORA_HOST_DEVICE inline float nf4Divide(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
/// Returns a * b + c, rounded once.
QLORA_HOST_DEVICE inline float nf4Fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// Elements and their scales ---------------------------------------------------

/// Returns the bits of |value|, which sort like |value|; a NaN is the largest.
QLORA_HOST_DEVICE inline int32_t nf4Magnitude(float value) {
  return int32_t(qlora_to_bits(value) & 0x7fffffffu);
}

/// Replaces NaN by a NaN with fixed bits. Machines differ in the bits of a
/// widened f16 NaN, and of the maximum of a NaN and another value.
QLORA_HOST_DEVICE inline float nf4WithoutPayload(float value) {
  return value == value ? value : qlora_from_bits(0x7fc00000u);
}

/// Returns the divisor of a block whose largest magnitude is `absmax`: at least
/// 1e-38, as in bitsandbytes, which matters only for blocks of zeros.
QLORA_HOST_DEVICE inline float nf4Divisor(float absmax) {
  return nf4WithoutPayload(absmax < 1e-38f ? 1e-38f : absmax);
}

/// Clamps to [-1, 1]. A NaN stays NaN, is above no midpoint, and gets code 0.
QLORA_HOST_DEVICE inline float nf4Clamp(float value) {
  return value < -1.0f ? -1.0f : 1.0f < value ? 1.0f : value;
}

/// Scales an element of a complete block; `inverse` is 1 / the divisor.
QLORA_HOST_DEVICE inline float nf4Scaled(float value, float inverse) {
  return nf4Clamp(nf4Multiply(value, inverse));
}
/// Scales an element of a partial last block; bitsandbytes divides there.
QLORA_HOST_DEVICE inline float nf4Divided(float value, float divisor) {
  return nf4Clamp(nf4Divide(value, divisor));
}

// Double quantization ---------------------------------------------------------

/// Returns the offset; `sum` is over the scales of all `blocks`.
QLORA_HOST_DEVICE inline float nf4Offset(double sum, int64_t blocks) {
  return nf4WithoutPayload(float(sum / double(blocks)));
}

/// Subtracts the offset from a scale.
QLORA_HOST_DEVICE inline float nf4Shifted(float scale, float offset) {
  return nf4WithoutPayload(nf4Add(scale, -offset));
}

/// Maps `shifted` * `inverse`, in [-1, 1], to a bucket from 0 to 65535 for
/// nf4NearestCode(). `inverse` is 1 / the largest magnitude of the scales that
/// share a nestedAbsmax. Returns -1 for NaN. The code of a NaN does not matter:
/// nestedAbsmax is NaN too, so all these scales decode to NaN.
QLORA_HOST_DEVICE inline int32_t nf4Bucket(float shifted, float inverse) {
  const float v = nf4Clamp(nf4Multiply(shifted, inverse));
  if (v != v)
    return -1;
  const float half = nf4Multiply(nf4Add(v, 1.0f), 0.5f);
  return int32_t(nf4Add(nf4Multiply(half, 65535.0f), 0.5f));
}

/// Returns the code whose value in the increasing `map` [kNF4MapEntries] is
/// nearest to the bucket's value: the number of midpoints below this value.
QLORA_HOST_DEVICE inline uint8_t nf4NearestCode(const float *map,
                                                int32_t bucket) {
  const float value = nf4Add(-1.0f, nf4Divide(2.0f * float(bucket), 65535.0f));
  int low = 0, high = kNF4MapEntries - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    const bool isAbove = 0.5f * nf4Add(map[middle], map[middle + 1]) < value;
    low = isAbove ? middle + 1 : low;
    high = isAbove ? high : middle;
  }
  return uint8_t(low);
}

/// Returns entry `code` of a dynamic map (Dettmers, "8-bit Approximations for
/// Parallelism in Deep Learning", 2015). The entries are 0, 1, and for each
/// exponent e from 0 to 6 the middles of equal intervals of [0.1, 1], times
/// 10^(e-6). A signed map has 2^e intervals per sign, an unsigned map 2^(e+1).
QLORA_HOST_DEVICE inline float dynamicMapValue(bool isSigned, int code) {
  constexpr float kPowers[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1};
  const int zero = isSigned ? 127 : 0;
  if (code == zero || code == 255)
    return code == zero ? 0.0f : 1.0f;
  int part = (code < zero ? zero - code : code - zero) - 1, exponent = 0;
  int parts = isSigned ? 1 : 2;
  for (; part >= parts; ++exponent) {
    part -= parts;
    parts *= 2;
  }
  // Like torch.linspace, compute boundaries from the nearer end, with FMA.
  const float step = nf4Divide(1.0f - 0.1f, float(parts));
  const auto boundary = [&](int i) {
    return i < (parts + 1) / 2 ? nf4Fused(step, float(i), 0.1f)
                               : nf4Fused(-step, float(parts - i), 1.0f);
  };
  const float value = nf4Multiply(
      kPowers[exponent], nf4Add(boundary(part), boundary(part + 1)) * 0.5f);
  return code < zero ? -value : value;
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_MATH_NF4QUANTIZE_H
