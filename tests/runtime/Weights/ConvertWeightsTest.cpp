// SPDX-License-Identifier: MIT

// Conversions between types: every 16-bit value, and rounding at ties and
// limits.

#include "runtime/Weights/ConvertWeights.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace qlora {
namespace {

uint16_t narrow(qlora_dtype dtype, float value) {
  uint16_t bits = 0;
  weightsFromFloat(dtype, &value, 1, reinterpret_cast<uint8_t *>(&bits));
  return bits;
}

float widen(qlora_dtype dtype, uint16_t bits) {
  float value = 0;
  weightsToFloat(dtype, reinterpret_cast<const uint8_t *>(&bits), 1, &value);
  return value;
}

TEST(ConvertWeights, EveryNarrowValueSurvives) {
  for (const qlora_dtype dtype : {QLORA_DTYPE_BF16, QLORA_DTYPE_F16})
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto narrowBits = static_cast<uint16_t>(bits);
      const float value = widen(dtype, narrowBits);
      const float again = widen(dtype, narrow(dtype, value));
      EXPECT_TRUE(std::isnan(value) ? std::isnan(again)
                                    : narrow(dtype, value) == narrowBits)
          << bits;
    }
}

TEST(ConvertWeights, RoundsToNearestEven) {
  // One bf16 ulp at 1 is 2^-7, one f16 ulp is 2^-10; ties round to even.
  EXPECT_EQ(narrow(QLORA_DTYPE_BF16, 1 + 0x1p-8f), 0x3f80);
  EXPECT_EQ(narrow(QLORA_DTYPE_BF16, 1 + 0x3p-8f), 0x3f82);
  EXPECT_EQ(narrow(QLORA_DTYPE_F16, 1 + 0x1p-11f), 0x3c00);
  EXPECT_EQ(narrow(QLORA_DTYPE_F16, 1 + 0x3p-11f), 0x3c02);
  EXPECT_EQ(narrow(QLORA_DTYPE_F16, 65519.0f), 0x7bff);
  EXPECT_EQ(narrow(QLORA_DTYPE_F16, 65520.0f), 0x7c00);
  EXPECT_EQ(narrow(QLORA_DTYPE_F16, -0x1p-24f), 0x8001);
  EXPECT_EQ(narrow(QLORA_DTYPE_F16, 0x1p-25f), 0x0000);
  EXPECT_EQ(narrow(QLORA_DTYPE_F16, 0x1.8p-24f), 0x0002);
  EXPECT_EQ(narrow(QLORA_DTYPE_BF16, std::numeric_limits<float>::max()),
            0x7f80);
}

TEST(ConvertWeights, ReadsUnalignedBytes) {
  const std::vector<uint8_t> bytes = {0, 0x80, 0x3f, 0x00, 0x40};
  float out[2] = {};
  weightsToFloat(QLORA_DTYPE_BF16, bytes.data() + 1, 2, out);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], 2.0f);
}

} // namespace
} // namespace qlora
