// SPDX-License-Identifier: MIT

// Quantizes one block or row of each format. Every f32 operation is rounded
// separately (this file is compiled with -ffp-contract=off).

#include "runtime/Kernels/Cpu/QuantizeBlock.h"

#include <cmath>
#include <cstring>

#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora {

// Marks functions that are inlined into each variant of a QLORA_VECTOR caller.
#define QLORA_IN_VECTOR [[gnu::always_inline]] static inline

/// FP4 codes in ascending order of their values. Codes 0 and 8 both mean zero:
/// zero is encoded as 0, and values just above zero as 8.
static constexpr int32_t kFP4Order[16] = {11, 10, 13, 12, 15, 14, 9, 0,
                                          8,  1,  6,  7,  4,  5,  2, 3};
static constexpr float fp4Midpoint(int rank) {
  return (fp4Value(kFP4Order[rank]) + fp4Value(kFP4Order[rank + 1])) / 2.0f;
}

/// codes[i] := number of midpoints below values[i]. Several elements and their
/// counts stay in registers while all midpoints are compared.
template <float (*midpoint)(int)>
QLORA_IN_VECTOR void countMidpoints(const float *__restrict values,
                                    int64_t count, int32_t *__restrict codes) {
  constexpr int64_t kRun = 16;
  typedef float Values __attribute__((vector_size(kRun * sizeof(float))));
  typedef int32_t Codes __attribute__((vector_size(kRun * sizeof(int32_t))));
  int64_t first = 0;
  for (; first + kRun <= count; first += kRun) {
    Values run;
    Codes below{};
    std::memcpy(&run, values + first, sizeof run);
#pragma GCC unroll 15
    for (int m = 0; m < kNF4Midpoints; ++m)
      below -= run > midpoint(m); // true is -1
    std::memcpy(codes + first, &below, sizeof below);
  }
  for (; first < count; ++first) {
    codes[first] = 0;
    for (int m = 0; m < kNF4Midpoints; ++m)
      codes[first] += values[first] > midpoint(m) ? 1 : 0;
  }
}

/// Packs two codes per byte, the first in the high nibble.
QLORA_IN_VECTOR void pack(const int32_t *codes, int64_t count,
                          uint8_t *packed) {
  for (int64_t i = 0; i < count; i += 2)
    packed[i / 2] = static_cast<uint8_t>(codes[i] << 4 | codes[i + 1]);
}

/// Scales the `count` <= `block` elements of a block to [-1, 1] in `values` and
/// sets each code to the number of midpoints below the element. If `count` is
/// odd, appends a zero (`values` has space for it). Returns the block's scale.
template <float (*midpoint)(int)>
QLORA_IN_VECTOR float rankBlock(int64_t block, int64_t &count,
                                float *__restrict values,
                                int32_t *__restrict codes) {
  float absmax = nf4WithoutPayload(largestMagnitude(values, count));
  const float divisor = nf4Divisor(absmax);
  if (count == block) {
    const float inverse = 1.0f / divisor;
    for (int64_t i = 0; i < count; ++i)
      values[i] = nf4Scaled(values[i], inverse);
  } else {
    absmax = divisor;
    for (int64_t i = 0; i < count; ++i)
      values[i] = nf4Divided(values[i], divisor);
  }
  if (count % 2 != 0)
    values[count++] = 0.0f;
  countMidpoints<midpoint>(values, count, codes);
  return absmax;
}

QLORA_VECTOR static float quantizeNF4Block(int64_t block, int64_t count,
                                           float *__restrict values,
                                           int32_t *__restrict codes,
                                           uint8_t *__restrict packed) {
  const float absmax = rankBlock<nf4Midpoint>(block, count, values, codes);
  pack(codes, count, packed);
  return absmax;
}

QLORA_VECTOR static float quantizeFP4Block(int64_t block, int64_t count,
                                           float *__restrict values,
                                           int32_t *__restrict codes,
                                           uint8_t *__restrict packed) {
  const float absmax = rankBlock<fp4Midpoint>(block, count, values, codes);
  for (int64_t i = 0; i < count; ++i)
    codes[i] = kFP4Order[codes[i]];
  pack(codes, count, packed);
  return absmax;
}

/// Returns the E2M1 code of a value, rounded to nearest even.
QLORA_IN_VECTOR int32_t e2m1Code(float value) {
  const float size = std::abs(value);
  return (std::signbit(value) ? 8 : 0) + (size > 0.25f) + (size >= 0.75f) +
         (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) + (size >= 3.5f) +
         (size > 5.0f);
}

/// Quantizes an MXFP4 block. The scale is a power of two, or 0 for zeros.
QLORA_VECTOR static float quantizeMXFP4Block(int64_t, int64_t count,
                                             float *__restrict values,
                                             int32_t *__restrict codes,
                                             uint8_t *__restrict packed) {
  for (int64_t i = 0; i < count; ++i)
    values[i] = qlora_round_bf16(values[i]);
  const float least = largestMagnitude(values, count) / 6.0f;
  const auto scale = std::bit_cast<float>(
      (std::bit_cast<uint32_t>(least) + 0x007fffffu) & 0x7f800000u);
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  if (count % 2 != 0)
    values[count++] = 0.0f;
  for (int64_t i = 0; i < count; ++i)
    codes[i] = e2m1Code(values[i] * inverse);
  pack(codes, count, packed);
  return scale;
}

/// Returns the E4M3 code of a value of at most 448, rounded to nearest even.
static uint8_t e4m3Code(float value) {
  const auto bits = std::bit_cast<uint32_t>(std::abs(value));
  const int sign = std::signbit(value) ? 128 : 0;
  // Below the smallest normal number, codes are multiples of 2^-9.
  if (std::abs(value) < 0x1p-6f)
    return static_cast<uint8_t>(
        sign + static_cast<int>(std::nearbyint(std::abs(value) * 512.0f)));
  const uint32_t rounded = (bits + 0x7ffffu + (bits >> 20 & 1)) >> 20;
  return static_cast<uint8_t>(sign + static_cast<int>(rounded) - (120 << 3));
}

static float quantizeFP8Row(int64_t, int64_t count, float *__restrict values,
                            int32_t *__restrict, uint8_t *__restrict packed) {
  const float scale = largestMagnitude(values, count) / 448.0f;
  for (int64_t i = 0; i < count; ++i)
    packed[i] = scale > 0.0f ? e4m3Code(std::clamp(values[i] / scale, -448.0f,
                                                   448.0f))
                             : uint8_t{0};
  return scale;
}

/// Quantizes a row of LLM.int8 like torch's round(x * (127 / absmax)); torch
/// computes 127 / absmax as 127 * (1 / absmax). Codes of a row of zeros are 0.
static float quantizeInt8Row(int64_t, int64_t count, float *__restrict values,
                             int32_t *__restrict, uint8_t *__restrict packed) {
  for (int64_t i = 0; i < count; ++i)
    values[i] = qlora_round_f16(values[i]);
  const float absmax = largestMagnitude(values, count);
  const float inverse = 127.0f * (1.0f / absmax);
  for (int64_t i = 0; i < count; ++i) {
    const float code = std::nearbyint(values[i] * inverse);
    packed[i] = static_cast<uint8_t>(
        std::abs(code) <= 127.0f ? static_cast<int8_t>(code) : int8_t{0});
  }
  return absmax;
}

/// Formats that weights can be quantized to on load.
static constexpr Quantizer kQuantizers[] = {
    {QLORA_DTYPE_NF4, quantizeNF4Block, true},
    {QLORA_DTYPE_FP4, quantizeFP4Block, false},
    {QLORA_DTYPE_LLM_INT8, quantizeInt8Row, false},
    {QLORA_DTYPE_FP8, quantizeFP8Row, false},
    {QLORA_DTYPE_MXFP4, quantizeMXFP4Block, false},
};

const Quantizer *findQuantizer(qlora_dtype dtype) {
  for (const Quantizer &quantizer : kQuantizers)
    if (quantizer.dtype == dtype)
      return &quantizer;
  return nullptr;
}

} // namespace qlora
