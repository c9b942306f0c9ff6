// SPDX-License-Identifier: MIT

// Conversions by bits, so that no compiler flag can change a rounding.

#include "runtime/Core/ConvertWeights.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>

namespace qlora {

unsigned weightBytes(qlora_dtype dtype) {
  switch (dtype) {
  case QLORA_DTYPE_F32:
    return 4;
  case QLORA_DTYPE_BF16:
  case QLORA_DTYPE_F16:
    return 2;
  default:
    return 0;
  }
}

static float bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

static uint16_t floatToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) // keep it a NaN whatever its low bits were
    return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float f16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 31;
  const uint32_t mantissa = bits & 1023;
  if (exponent == 31) // infinity or NaN
    return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0)
    return std::bit_cast<float>(sign | (exponent + 112) << 23 |
                                mantissa << 13);
  // Zero or denormal: mantissa units of 2^-24, exact in f32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

static uint16_t floatToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 1023));
  if (magnitude >= 0x477ff000) // rounds to 65536 or more
    return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    // Denormal: the sum's last bit is worth 2^-24, so the addition rounds.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign |
                                 (std::bit_cast<uint32_t>(sum) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

void weightsToFloat(qlora_dtype dtype, const uint8_t *from, int64_t count,
                    float *out) {
  if (dtype == QLORA_DTYPE_F32) {
    std::memcpy(out, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  assert(weightBytes(dtype) == 2 && "no dtype of weights");
  auto *const convert = dtype == QLORA_DTYPE_BF16 ? bf16ToFloat : f16ToFloat;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, sizeof(bits));
    out[i] = convert(bits);
  }
}

void weightsFromFloat(qlora_dtype dtype, const float *from, int64_t count,
                      uint8_t *out) {
  if (dtype == QLORA_DTYPE_F32) {
    std::memcpy(out, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  assert(weightBytes(dtype) == 2 && "no dtype of weights");
  auto *const convert = dtype == QLORA_DTYPE_BF16 ? floatToBf16 : floatToF16;
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = convert(from[i]);
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
}

void convertWeights(qlora_dtype fromType, const uint8_t *from,
                    qlora_dtype toType, uint8_t *to, int64_t count) {
  if (fromType == toType) {
    std::memcpy(to, from, static_cast<size_t>(count) * weightBytes(toType));
    return;
  }
  constexpr int64_t kPart = 4096;
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < count; begin += kPart) {
    float values[kPart];
    const int64_t part = std::min(kPart, count - begin);
    weightsToFloat(fromType, from + begin * weightBytes(fromType), part,
                   values);
    weightsFromFloat(toType, values, part, to + begin * weightBytes(toType));
  }
}

} // namespace qlora
