// SPDX-License-Identifier: MIT

// Compares generated kernels that encode rows in 8 bits with plain loops. The
// rows have odd widths, gaps, zeros, ties, and values that are not finite.

#include "tests/compiler/Codegen/KernelHarness.h"

#include <fmt/format.h>

using namespace qlora;
using namespace qlora::test;

static std::string coding(int64_t columns, const char *op) {
  return fmt::format(fmt::runtime(op), columns);
}
static constexpr const char *kEncode = R"(
  func.func @f(%x: tensor<6x{0}xf32>) {{
    %c, %s = train.encode_rows %x
        : (tensor<6x{0}xf32>) -> (tensor<6x{0}xi8>, tensor<6x1xf32>)
    return
  }})";
static constexpr const char *kDecode = R"(
  func.func @f(%c: tensor<6x{0}xi8>, %s: tensor<6x1xf32>) {{
    %x = train.decode_rows %c, %s
        : (tensor<6x{0}xi8>, tensor<6x1xf32>) -> tensor<6x{0}xf32>
    return
  }})";

/// Row 0 is zero, the largest value of row 1 is negative, row 2 has tiny
/// values, and row 3 has ties. Decoded values are off by at most half a scale.
static void testCoding(int64_t columns, qlora_dtype dtype, int64_t gap) {
  SCOPED_TRACE(fmt::format("{} columns", columns));
  constexpr int64_t kRows = 6;
  Buffer x = {dtype, columns + gap, 1, kRows * (columns + gap)};
  Buffer codes = {QLORA_DTYPE_I8, columns, 1, kRows * columns};
  Buffer scales = {QLORA_DTYPE_F32, 1, 1, kRows};
  RowKernel encode(coding(columns, kEncode), {x, codes, scales});
  for (int64_t c = 0; c < columns; ++c) {
    encode[0].set(c, 0);
    encode[0].set(2 * (columns + gap) + c, 1e-34);
    encode[0].set(3 * (columns + gap) + c, c ? c % 127 + 0.5 : 127);
  }
  encode[0].set(columns + gap, -3);
  encode.runBothWays(kRows);
  RowKernel decode(coding(columns, kDecode), {codes, scales, x});
  decode[0].memory = encode[1].memory;
  decode[1].memory = encode[2].memory;
  decode.runBothWays(kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    float largest = 1e-30f;
    for (int64_t c = 0; c < columns; ++c)
      largest = std::max(largest,
                         float(std::abs(encode[0].at(r * x.stride + c))));
    EXPECT_EQ(float(encode[2].at(r)), largest / 127.0f);
    for (int64_t c = 0; c < columns; ++c) {
      float value = encode[0].at(r * x.stride + c);
      EXPECT_EQ(encode[1].at(r * columns + c),
                std::nearbyint(value * (127.0f / largest)));
      double half = largest / 254.0;
      double stored = dtype == QLORA_DTYPE_BF16 ? 0x1p-8 * largest : 0;
      EXPECT_NEAR(decode[2].at(r * x.stride + c), value,
                  half * (1 + 1e-4) + stored);
    }
  }
}

TEST(EncodeRun, EncodeAndDecodeRows) {
  testCoding(1, QLORA_DTYPE_F32, 0);
  testCoding(7, QLORA_DTYPE_F32, 3);
  testCoding(64, QLORA_DTYPE_BF16, 0);
  testCoding(577, QLORA_DTYPE_BF16, 5);
}

TEST(EncodeRun, EncodeKeepsWhatIsNotFinite) {
  constexpr int64_t kColumns = 20, kRows = 6;
  RowKernel k(coding(kColumns, kEncode),
              {{QLORA_DTYPE_F32, kColumns, 1, kRows * kColumns},
               {QLORA_DTYPE_I8, kColumns, 1, kRows * kColumns},
               {QLORA_DTYPE_F32, 1, 1, kRows}});
  k[0].set(17, NAN);
  k[0].set(kColumns + 3, -INFINITY);
  k.runBothWays(kRows);
  EXPECT_TRUE(std::isnan(k[2].at(0)));
  EXPECT_EQ(k[2].at(1), INFINITY);
  EXPECT_TRUE(std::isfinite(k[2].at(2)));
}

/// The decoded value plus the quantization error gives x. Row 1, whose scale is
/// not finite, has no quantization error.
TEST(EncodeRun, WhatCodesLeave) {
  constexpr int64_t kColumns = 37, kRows = 6;
  Buffer full = {QLORA_DTYPE_F32, kColumns, 1, kRows * kColumns};
  RowKernel k(coding(kColumns, R"(
    func.func @f(%x: tensor<6x{0}xf32>, %c: tensor<6x{0}xi8>,
                 %s: tensor<6x1xf32>) {{
      %l = train.left_by_codes %x, %c, %s
          : (tensor<6x{0}xf32>, tensor<6x{0}xi8>, tensor<6x1xf32>)
          -> tensor<6x{0}xf32>
      return
    }})"),
              {full,
               {QLORA_DTYPE_I8, kColumns, 1, kRows * kColumns},
               {QLORA_DTYPE_F32, 1, 1, kRows},
               full});
  for (int64_t i = 0; i < kRows * kColumns; ++i)
    k[1].set(i, double(i % 255 - 127));
  for (int64_t r = 0; r < kRows; ++r)
    k[2].set(r, r == 1 ? INFINITY : 0.25 * double(r + 1));
  k[0].set(kColumns + 3, NAN);
  k.runBothWays(kRows);
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const int64_t r = i / kColumns;
    if (r == 1)
      EXPECT_EQ(k[3].at(i), 0);
    else
      EXPECT_NEAR(k[3].at(i) + k[1].at(i) * k[2].at(r), k[0].at(i), 1e-5);
  }
}

/// y = x * max |x|: all values equal to the maximum get its gradient.
TEST(EncodeRun, LargestGradient) {
  constexpr int64_t kColumns = 21, kRows = 4;
  Buffer full = {QLORA_DTYPE_F32, kColumns, 1, kRows * kColumns};
  RowKernel k(R"(func.func @f(%x: tensor<4x21xf32>) {
    %y = model.rows(%x) attributes {columns = 21, maps = [#model.map<full>]}
        : (tensor<4x21xf32>) -> tensor<4x21xf32> {
    ^bb0(%0: tensor<21xf32>):
      %1 = math.absf %0 : tensor<21xf32>
      %2 = model.row_max %1 : tensor<21xf32>
      %3 = model.row_splat %2 : tensor<21xf32>
      %4 = arith.mulf %0, %3 : tensor<21xf32>
      model.row_yield %4 : tensor<21xf32>
    }
    return
  })", {full, full, full}, true);
  k[0].set(4, 5), k[0].set(9, -5); // both are the largest of row 0
  k.runBothWays(kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    auto x = [&](int64_t c) { return k[0].at(r * kColumns + c); };
    auto dy = [&](int64_t c) { return k[1].at(r * kColumns + c); };
    double largest = 0, dot = 0;
    int64_t count = 0;
    for (int64_t c = 0; c < kColumns; ++c) {
      largest = std::max(largest, std::abs(x(c)));
      dot += dy(c) * x(c);
    }
    for (int64_t c = 0; c < kColumns; ++c)
      count += std::abs(x(c)) == largest;
    for (int64_t c = 0; c < kColumns; ++c) {
      double share = std::abs(x(c)) == largest ? dot / count : 0;
      EXPECT_NEAR(k[2].at(r * kColumns + c),
                  dy(c) * largest + std::copysign(share, x(c) * share), 1e-4);
    }
  }
}
