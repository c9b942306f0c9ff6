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

// Elements and their scales ---------------------------------------------------

/// The bits of a magnitude, which order like magnitudes; a NaN is the largest.
QLORA_HOST_DEVICE inline int32_t nf4Magnitude(float value) {
  return int32_t(qlora_to_bits(value) & 0x7fffffffu);
}

/// What a block with that largest magnitude is divided by: bitsandbytes raises
/// it to a denormal, so that only an all-zero block changes.
QLORA_HOST_DEVICE inline float nf4Divisor(float absmax) {
  return absmax < 1e-38f ? 1e-38f : absmax;
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

QLORA_HOST_DEVICE inline float nf4WithoutPayload(float value) {
  return value == value ? value : qlora_from_bits(0x7fc00000u);
}

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
/// middle of a bucket, the lower of two.
QLORA_HOST_DEVICE inline uint8_t nf4NearestCode(const float *map,
                                                int32_t bucket) {
  const double part = double(bucket) / 65535.0;
  const double value = part + part - 1.0;
  int low = 0, high = kNF4MapEntries - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    const double below = value - map[middle], above = map[middle + 1] - value;
    const bool isAbove = (above < 0 ? -above : above) <
                         (below < 0 ? -below : below);
    low = isAbove ? middle + 1 : low;
    high = isAbove ? high : middle;
  }
  return uint8_t(low);
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_MATH_NF4QUANTIZE_H
