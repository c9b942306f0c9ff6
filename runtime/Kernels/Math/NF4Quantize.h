// SPDX-License-Identifier: MIT

// The arithmetic of quantising to NF4, number by number, for the CPU and for
// CUDA: both give the same bytes, those of bitsandbytes 0.50 on a CPU.
//
// A block's scale is the largest magnitude of its elements. An element is
// scaled into [-1, 1], and its code is the number of midpoints between
// neighbours of the code book that lie below it.
//
// Double quantisation replaces the scales by codes of one byte. Their offset is
// the mean of all scales of the tensor: an f64 sum in one order, whatever
// computes it. Partial sum p of kNF4MeanPartials adds the scales p, p +
// kNF4MeanPartials, ... one after the other; then the upper half of the partial
// sums is added to the lower half until one is left. The sum is divided by the
// number of scales and rounded once. Less the offset, a run of 256 scales is
// multiplied by 1 / its largest magnitude, put into one of 65,536 buckets over
// [-1, 1], and the code is the dynamic map's entry nearest to the bucket.
//
// Every operation is rounded on its own: on CUDA by name, since nvcc contracts;
// callers on the CPU are compiled with -ffp-contract=off. A NaN that arithmetic
// makes has no bits of its own across machines, so it is given some.

#ifndef QLORA_RUNTIME_KERNELS_MATH_NF4QUANTIZE_H
#define QLORA_RUNTIME_KERNELS_MATH_NF4QUANTIZE_H

#include "runtime/Kernels/Math/CodeBooks.h"
#include "runtime/Kernels/Rows.h"

namespace qlora {

inline constexpr int kNF4Midpoints = 15;
/// A power of two.
inline constexpr int kNF4MeanPartials = 1024;
inline constexpr int kNF4MapEntries = 256;
/// Elements of 8-bit optimizer states that share a scale.
inline constexpr int kStateBlock = 256;

/// Between two neighbours of the code book. `code` is known to the compiler.
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
/// a * b + c, rounded once.
QLORA_HOST_DEVICE inline float nf4Fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// Elements and their scales ---------------------------------------------------

/// The bits of a magnitude, which order like magnitudes; a NaN is the largest.
QLORA_HOST_DEVICE inline int32_t nf4Magnitude(float value) {
  return int32_t(qlora_to_bits(value) & 0x7fffffffu);
}

/// One NaN for all: machines widen an f16 NaN, and take its maximum with
/// another number, to bits of their own.
QLORA_HOST_DEVICE inline float nf4WithoutPayload(float value) {
  return value == value ? value : qlora_from_bits(0x7fc00000u);
}

/// What a block with that largest magnitude is divided by: bitsandbytes raises
/// it to a denormal, so that only an all-zero block changes.
QLORA_HOST_DEVICE inline float nf4Divisor(float absmax) {
  return nf4WithoutPayload(absmax < 1e-38f ? 1e-38f : absmax);
}

/// Into [-1, 1]; a NaN stays one, and lies above no midpoint.
QLORA_HOST_DEVICE inline float nf4Clamp(float value) {
  return value < -1.0f ? -1.0f : 1.0f < value ? 1.0f : value;
}

/// An element of a whole block; `inverse` is 1 / the divisor.
QLORA_HOST_DEVICE inline float nf4Scaled(float value, float inverse) {
  return nf4Clamp(nf4Multiply(value, inverse));
}
/// An element of a last block that is partial.
QLORA_HOST_DEVICE inline float nf4Divided(float value, float divisor) {
  return nf4Clamp(nf4Divide(value, divisor));
}

// Double quantisation ---------------------------------------------------------

/// The offset, from the sum of the scales.
QLORA_HOST_DEVICE inline float nf4Offset(double sum, int64_t blocks) {
  return nf4WithoutPayload(float(sum / double(blocks)));
}

/// A scale less the offset.
QLORA_HOST_DEVICE inline float nf4Shifted(float scale, float offset) {
  return nf4WithoutPayload(nf4Add(scale, -offset));
}

/// Bucket of a shifted scale; `inverse` is 1 / the largest magnitude of its
/// run. NaN has none, -1: its block decodes to NaN through the magnitude.
QLORA_HOST_DEVICE inline int32_t nf4Bucket(float shifted, float inverse) {
  const float v = nf4Clamp(nf4Multiply(shifted, inverse));
  if (v != v)
    return -1;
  const float half = nf4Multiply(nf4Add(v, 1.0f), 0.5f);
  return int32_t(nf4Add(nf4Multiply(half, 65535.0f), 0.5f));
}

/// The entry of the increasing `map` [kNF4MapEntries] that is nearest to the
/// middle of a bucket: as many as there are midpoints below it.
QLORA_HOST_DEVICE inline uint8_t nf4NearestCode(const float *map,
                                                int32_t bucket) {
  const float value =
      nf4Add(-1.0f, nf4Divide(2.0f * float(bucket), 65535.0f));
  int low = 0, high = kNF4MapEntries - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    const bool isAbove = 0.5f * nf4Add(map[middle], map[middle + 1]) < value;
    low = isAbove ? middle + 1 : low;
    high = isAbove ? high : middle;
  }
  return uint8_t(low);
}

/// Entry `code` of a dynamic map (Dettmers, "8-bit Approximations for
/// Parallelism in Deep Learning", 2015): 0, 1, and for 7 exponents e the middles
/// of parts of [0.1, 1], times 10^(e-6). There are 2^e parts, of both signs, or
/// twice as many without a sign.
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
  // The grid is built from both ends and fused, as torch.linspace does.
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
