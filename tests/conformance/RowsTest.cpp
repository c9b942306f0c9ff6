// SPDX-License-Identifier: MIT

// Compares the math functions of generated kernels with libm in f64, and checks
// the 16-bit conversions bit by bit.

#include "runtime/Kernels/Rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace {

/// Returns the distance in f32 ulps at `exact` (2^-149 for subnormals).
double ulps(float got, double exact) {
  if (std::isinf(got) && std::abs(exact) > 3.4028235e38)
    return 0;
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::abs(double(got) - exact) / std::ldexp(1.0, exponent - 23);
}

/// Returns the worst error over every `stride`-th bit pattern whose magnitude
/// is at most `limit`.
template <typename Function, typename Exact>
double worstOver(float limit, uint32_t stride, Function function, Exact exact) {
  double worst = 0;
  for (uint64_t bits = 0; bits < uint64_t(1) << 32; bits += stride) {
    const float x = qlora_from_bits(uint32_t(bits));
    if (std::abs(x) <= limit)
      worst = std::max(worst, ulps(function(x), exact(double(x))));
  }
  return worst;
}

constexpr uint32_t kStride = 1237;

TEST(Rows, ExpIsWithinOneUlp) {
  const double worst = worstOver(
      200.0f, kStride, [](float x) { return qlora_exp(x); },
      [](double x) { return std::exp(x); });
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LE(worst, 1.0);
}

TEST(Rows, ExpAtTheEnds) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(qlora_exp(infinity), infinity);
  EXPECT_EQ(qlora_exp(-infinity), 0.0f);
  EXPECT_EQ(qlora_exp(0.0f), 1.0f);
  EXPECT_TRUE(std::isnan(qlora_exp(NAN)));
}

TEST(Rows, SigmoidIsWithinTwoAndAHalfUlp) {
  const double worst = worstOver(
      80.0f, kStride, [](float x) { return qlora_sigmoid(x); },
      [](double x) { return 1.0 / (1.0 + std::exp(-x)); });
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LE(worst, 2.5);
}

TEST(Rows, LogIsWithinOneUlp) {
  const double worst = worstOver(
      3.4e38f, kStride, [](float x) { return qlora_log(qlora_abs(x)); },
      [](double x) { return std::log(std::abs(x)); });
  EXPECT_LE(worst, 1.0);
}

TEST(Rows, LogAtTheEnds) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(qlora_log(infinity), infinity);
  EXPECT_EQ(qlora_log(0.0f), -infinity);
  EXPECT_EQ(qlora_log(-0.0f), -infinity);
  EXPECT_EQ(qlora_log(1.0f), 0.0f);
  EXPECT_TRUE(std::isnan(qlora_log(-1.0f)));
  EXPECT_TRUE(std::isnan(qlora_log(NAN)));
}

TEST(Rows, TanhIsWithinTwoUlp) {
  const double worst = worstOver(
      200.0f, kStride, [](float x) { return qlora_tanh(x); },
      [](double x) { return std::tanh(x); });
  EXPECT_LE(worst, 2.0);
}

TEST(Rows, ErfIsWithinTwoAndAHalfUlp) {
  const double worst = worstOver(
      200.0f, kStride, [](float x) { return qlora_erf(x); },
      [](double x) { return std::erf(x); });
  EXPECT_LE(worst, 2.5);
}

TEST(Rows, TanhAndErfAtTheEnds) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (auto *function : {+[](float x) { return qlora_tanh(x); },
                         +[](float x) { return qlora_erf(x); }}) {
    EXPECT_EQ(function(infinity), 1.0f);
    EXPECT_EQ(function(-infinity), -1.0f);
    EXPECT_EQ(qlora_to_bits(function(-0.0f)), 0x80000000u);
    EXPECT_TRUE(std::isnan(function(NAN)));
  }
}

TEST(Rows, RoundingIsAStoreAndALoad) {
  for (uint64_t bits = 0; bits < uint64_t(1) << 32; bits += kStride) {
    const float x = qlora_from_bits(uint32_t(bits));
    uint16_t half = 0;
    qlora_store_bf16(&half, 0, x);
    ASSERT_EQ(qlora_to_bits(qlora_round_bf16(x)),
              qlora_to_bits(qlora_load_bf16(&half, 0)));
    qlora_store_f16(&half, 0, x);
    ASSERT_EQ(qlora_to_bits(qlora_round_f16(x)),
              qlora_to_bits(qlora_load_f16(&half, 0)));
  }
}

TEST(Rows, SineAndCosineAreWithinOneUlp) {
  const double sine = worstOver(
      1.6e6f, kStride, [](float x) { return qlora_sin(x); },
      [](double x) { return std::sin(x); });
  const double cosine = worstOver(
      1.6e6f, kStride, [](float x) { return qlora_cos(x); },
      [](double x) { return std::cos(x); });
  RecordProperty("worst_ulp", std::to_string(std::max(sine, cosine)));
  EXPECT_LE(sine, 1.0);
  EXPECT_LE(cosine, 1.0);
}

TEST(Rows, RsqrtIsWithinOneAndAHalfUlp) {
  double worst = 0;
  for (uint32_t bits = 1; bits < 0x7f800000u; bits += kStride) {
    const float x = qlora_from_bits(bits);
    worst = std::max(worst, ulps(qlora_rsqrt(x), 1.0 / std::sqrt(double(x))));
  }
  EXPECT_LE(worst, 1.5);
}

TEST(Rows, RoundEvenIsExact) {
  for (uint64_t bits = 0; bits < uint64_t(1) << 32; bits += kStride) {
    const float x = qlora_from_bits(uint32_t(bits));
    if (!std::isnan(x)) {
      ASSERT_EQ(qlora_to_bits(qlora_round_even(x)),
                qlora_to_bits(std::nearbyint(x)))
          << x;
    }
  }
  for (float x = -1000.5f; x < 1000; ++x)
    ASSERT_EQ(qlora_round_even(x), std::nearbyint(x));
  EXPECT_TRUE(std::isnan(qlora_round_even(NAN)));
}

TEST(Rows, Int8RoundsAndSaturates) {
  int8_t code = 0;
  for (float x = -200; x < 200; x += 0.125f) {
    qlora_store_i8(&code, 0, x);
    ASSERT_EQ(code, std::clamp(std::nearbyint(x), -128.0f, 127.0f)) << x;
    ASSERT_EQ(qlora_load_i8(&code, 0), float(code));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  qlora_store_i8(&code, 0, infinity);
  EXPECT_EQ(code, 127);
  qlora_store_i8(&code, 0, -infinity);
  EXPECT_EQ(code, -128);
  qlora_store_i8(&code, 0, NAN);
  EXPECT_EQ(code, 0);
}

TEST(Rows, MaximumIsNaNWhereOneIs) {
  EXPECT_EQ(qlora_maximum(-1.0f, 2.0f), 2.0f);
  EXPECT_EQ(qlora_maximum(qlora_lowest(), -3e38f), -3e38f);
  EXPECT_TRUE(std::isnan(qlora_maximum(NAN, 2.0f)));
  EXPECT_TRUE(std::isnan(qlora_maximum(2.0f, NAN)));
  float lanes[16];
  qlora_lowest_lanes(lanes);
  lanes[11] = -5;
  EXPECT_EQ(qlora_max_lanes(lanes), -5.0f);
  lanes[3] = NAN;
  EXPECT_TRUE(std::isnan(qlora_max_lanes(lanes)));
}

TEST(Rows, Bf16RoundsToNearestEven) {
  for (uint32_t half = 0; half < 65536; ++half) {
    const float x = qlora_bf16_to_f32(uint16_t(half));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(qlora_bf16_to_f32(qlora_f32_to_bf16(x))));
      continue;
    }
    ASSERT_EQ(qlora_f32_to_bf16(x), half);
    const uint32_t bits = half << 16;
    if (std::isinf(x))
      continue;
    ASSERT_EQ(qlora_f32_to_bf16(qlora_from_bits(bits | 0x7fff)), half);
    ASSERT_EQ(qlora_f32_to_bf16(qlora_from_bits(bits | 0x8000)),
              half + (half & 1));
    ASSERT_EQ(qlora_f32_to_bf16(qlora_from_bits(bits | 0x8001)), half + 1);
  }
  // Rounding a NaN whose mantissa is all ones must not carry into the sign.
  EXPECT_TRUE(std::isnan(
      qlora_bf16_to_f32(qlora_f32_to_bf16(qlora_from_bits(0x7fffffffu)))));
}

double exactF16(uint32_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  const double magnitude = exponent == 0
                               ? std::ldexp(mantissa, -24)
                               : std::ldexp(1024 + mantissa, exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

TEST(Rows, F16RoundsToNearestEven) {
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    ASSERT_EQ(double(qlora_f16_to_f32(uint16_t(half))), exactF16(half));
    ASSERT_EQ(double(qlora_f16_to_f32(uint16_t(half | 0x8000))),
              exactF16(half | 0x8000));
    const float x = float(exactF16(half));
    const float middle = float((exactF16(half) + exactF16(half + 1)) / 2);
    ASSERT_EQ(qlora_f32_to_f16(x), half);
    ASSERT_EQ(qlora_f32_to_f16(-x), half | 0x8000);
    ASSERT_EQ(qlora_f32_to_f16(middle), half + (half & 1)) << half;
    ASSERT_EQ(qlora_f32_to_f16(std::nextafter(middle, 1e9f)), half + 1);
    ASSERT_EQ(qlora_f32_to_f16(std::nextafter(middle, -1.0f)), half);
  }
  EXPECT_EQ(qlora_f32_to_f16(INFINITY), 0x7c00);
  EXPECT_EQ(qlora_f32_to_f16(1e30f), 0x7c00);
  EXPECT_EQ(qlora_f16_to_f32(0xfc00), -INFINITY);
  EXPECT_TRUE(std::isnan(qlora_f16_to_f32(qlora_f32_to_f16(NAN))));
}

TEST(Rows, PhiloxGivesThePublishedNumbers) {
  // Published results of philox4x32-10, from kat_vectors of Random123.
  const qlora_philox_words zero = qlora_philox({0, 0, 0, 0}, 0, 0);
  EXPECT_EQ(zero.word0, 0x6627e8d5u);
  EXPECT_EQ(zero.word1, 0xe169c58du);
  EXPECT_EQ(zero.word2, 0xbc57ac4cu);
  EXPECT_EQ(zero.word3, 0x9b00dbd8u);
  const qlora_philox_words pi =
      qlora_philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                   0xa4093822u, 0x299f31d0u);
  EXPECT_EQ(pi.word0, 0xd16cfe09u);
  EXPECT_EQ(pi.word1, 0x94fdccebu);
  EXPECT_EQ(pi.word2, 0x5001e420u);
  EXPECT_EQ(pi.word3, 0x24126ea1u);
}

TEST(Rows, UniformIsUniformAndDistinct) {
  constexpr int64_t kRows = 64, kColumns = 1000;
  double sum = 0;
  std::vector<float> drawn;
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t column = 0; column < kColumns; ++column) {
      const float u = qlora_uniform(42, 3, 7, row, column);
      ASSERT_TRUE(u >= 0.0f && u < 1.0f);
      sum += u;
      drawn.push_back(u);
    }
  // The standard error of the mean of n uniform values is 1 / sqrt(12 n).
  const double n = kRows * kColumns;
  EXPECT_NEAR(sum / n, 0.5, 5 / std::sqrt(12 * n));
  std::sort(drawn.begin(), drawn.end());
  const auto distinct = std::unique(drawn.begin(), drawn.end());
  EXPECT_GT(distinct - drawn.begin(), 63000);
}

} // namespace
