// SPDX-License-Identifier: MIT

// Compares generated kernels with plain loops in double, for odd widths,
// strides, groups and bf16. Each kernel also runs in row ranges, which must
// give the same bits.

#include "tests/compiler/Codegen/KernelHarness.h"

#include <fmt/format.h>

using namespace qlora;
using namespace qlora::test;

/// Returns the allowed error. Rounding to the stored type may change a value by
/// 2^-8 (bf16) or 2^-23 (f32) of its size. Added is the error of f32 arithmetic
/// over `terms` values of size one.
static double tolerance(qlora_dtype dtype, double size, int64_t terms) {
  double stored = dtype == QLORA_DTYPE_BF16 ? 0x1p-8 : 0x1p-23;
  return stored * std::abs(size) + 0x1p-22 * (8 + terms);
}

//===----------------------------------------------------------------------===//
// rms_norm
//===----------------------------------------------------------------------===//

static constexpr double kEpsilon = 1e-5;

static std::string rmsNorm(int64_t columns) {
  return fmt::format(
      R"(func.func @f(%x: tensor<4x{0}xf32>, %w: tensor<{0}xf32>) {{
        %y = model.rms_norm %x, %w {{epsilon = 1.0e-5 : f64}}
            : (tensor<4x{0}xf32>, tensor<{0}xf32>) -> tensor<4x{0}xf32>
        return
      }})",
      columns);
}

/// Returns the factor of a row: 1 / sqrt(mean(x^2) + epsilon).
static double rmsScale(const Buffer &x, int64_t r, int64_t columns) {
  double sum = 0;
  for (int64_t c = 0; c < columns; ++c)
    sum += std::pow(x.at(x.index(r, c, columns)), 2);
  return 1 / std::sqrt(sum / columns + kEpsilon);
}

static void testRmsNorm(int64_t columns, qlora_dtype dtype, int64_t groups,
                        int64_t gap) {
  SCOPED_TRACE(fmt::format("{} columns, {} groups", columns, groups));
  constexpr int64_t kRows = 12;
  int64_t stride = groups * columns + gap;
  int64_t elements = kRows / groups * stride;
  RowKernel k(rmsNorm(columns), {{dtype, stride, groups, elements},
                                 {QLORA_DTYPE_F32, columns, 1, columns},
                                 {dtype, columns, 1, kRows * columns}});
  k.runBothWays(kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    double scale = rmsScale(k[0], r, columns);
    for (int64_t c = 0; c < columns; ++c) {
      double expected =
          k[0].at(k[0].index(r, c, columns)) * scale * k[1].at(c);
      EXPECT_NEAR(k[2].at(r * columns + c), expected,
                  tolerance(dtype, expected, 1));
    }
  }
}

TEST(KernelRun, RmsNorm) {
  testRmsNorm(1, QLORA_DTYPE_F32, 1, 0);
  testRmsNorm(7, QLORA_DTYPE_F32, 1, 3);
  testRmsNorm(64, QLORA_DTYPE_BF16, 3, 64);
  testRmsNorm(577, QLORA_DTYPE_F32, 2, 5);
}

TEST(KernelRun, RmsNormGradient) {
  constexpr int64_t kColumns = 83, kRows = 7;
  Buffer narrow = {QLORA_DTYPE_BF16, kColumns, 1, kRows * kColumns};
  Buffer wide = {QLORA_DTYPE_F32, kColumns, 1, kRows * kColumns};
  Buffer weight = {QLORA_DTYPE_F32, kColumns, 1, kColumns};
  // x, w, dy -> dx, one row of dw.
  RowKernel k(rmsNorm(kColumns), {narrow, weight, narrow, wide, wide}, true);
  k.runBothWays(kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    double scale = rmsScale(k[0], r, kColumns), dot = 0;
    auto x = [&](int64_t c) { return k[0].at(r * kColumns + c); };
    auto dy = [&](int64_t c) { return k[2].at(r * kColumns + c); };
    for (int64_t c = 0; c < kColumns; ++c)
      dot += dy(c) * k[1].at(c) * x(c);
    for (int64_t c = 0; c < kColumns; ++c) {
      // d(x s w) with ds = -s^3 x . dx / C
      double dx = scale * dy(c) * k[1].at(c) -
                  std::pow(scale, 3) * x(c) * dot / kColumns;
      EXPECT_NEAR(k[3].at(r * kColumns + c), dx,
                  tolerance(QLORA_DTYPE_F32, dx, kColumns));
      EXPECT_NEAR(k[4].at(r * kColumns + c), dy(c) * x(c) * scale, 1e-5);
    }
  }
}

TEST(KernelRun, EveryLevelOfCpuGivesTheSameBits) {
  constexpr int64_t kColumns = 77, kRows = 3;
  Buffer row = {QLORA_DTYPE_F32, kColumns, 1, kRows * kColumns};
  Buffer weight = {QLORA_DTYPE_F32, kColumns, 1, kColumns};
  std::vector<Buffer> buffers = {row, weight, row, row, row};
  RowKernel native(rmsNorm(kColumns), buffers, true);
  RowKernel least(rmsNorm(kColumns), buffers, true, "x86-64-v2");
  native.run(0, kRows);
  least.run(0, kRows);
  EXPECT_EQ(native[3].memory, least[3].memory);
  EXPECT_EQ(native[4].memory, least[4].memory);
}

//===----------------------------------------------------------------------===//
// rope
//===----------------------------------------------------------------------===//

TEST(KernelRun, RopeTable) {
  RowKernel k(R"(func.func @f(%p: tensor<2x3xi32>) {
    %c, %s = model.rope_table %p {frequencies = array<f32: 1.0, 0.1, 1.0, 0.1>,
        attention_factor = 0.5 : f64}
        : (tensor<2x3xi32>) -> (tensor<2x3x4xf32>, tensor<2x3x4xf32>)
    return
  })",
              {{QLORA_DTYPE_I32, 3, 1, 6},
               {QLORA_DTYPE_F32, 4, 1, 24},
               {QLORA_DTYPE_F32, 4, 1, 24}});
  for (int64_t r = 0; r < 6; ++r)
    k[0].set(r, 1000 * r);
  k.runBothWays(6);
  for (int64_t i = 0; i < 24; ++i) {
    double angle = float(1000 * (i / 4)) * (i % 2 ? 0.1f : 1.0f);
    EXPECT_NEAR(k[1].at(i), 0.5 * std::cos(angle), 1e-4);
    EXPECT_NEAR(k[2].at(i), 0.5 * std::sin(angle), 1e-4);
  }
}

/// Checks rope angles for segments of 2 to 8 tokens with an original length of
/// 4. `stretch` returns the expected factor of column 1's frequency, given the
/// length of a segment.
static void testRopeByLength(const char *scaling, double (*stretch)(double)) {
  RowKernel k(fmt::format(R"(func.func @f(%p: tensor<2x3xi32>,
                                          %l: tensor<2x3xi32>) {{
    %c, %s = model.rope_table %p, %l {{{}, original_length = 4 : i64,
        frequencies = array<f32: 1.0, 0.1, 1.0, 0.1>, attention_factor = 1.0 : f64}}
        : (tensor<2x3xi32>, tensor<2x3xi32>)
        -> (tensor<2x3x4xf32>, tensor<2x3x4xf32>)
    return
  }})",
                          scaling)
                  .c_str(),
              {{QLORA_DTYPE_I32, 3, 1, 6},
               {QLORA_DTYPE_I32, 3, 1, 6},
               {QLORA_DTYPE_F32, 4, 1, 24},
               {QLORA_DTYPE_F32, 4, 1, 24}});
  const int64_t lengths[] = {0, 2, 4, 5, 6, 8};
  for (int64_t r = 0; r < 6; ++r) {
    k[0].set(r, 10 * r);
    k[1].set(r, lengths[r]);
  }
  k.runBothWays(6);
  for (int64_t i = 0; i < 24; ++i) {
    const auto length = static_cast<double>(lengths[i / 4]);
    const double frequency =
        i % 2 ? 0.1 * (length > 4 ? stretch(length) : 1) : 1;
    EXPECT_NEAR(k[2].at(i), std::cos(10.0 * (i / 4) * frequency), 1e-5);
    EXPECT_NEAR(k[3].at(i), std::sin(10.0 * (i / 4) * frequency), 1e-5);
  }
}

TEST(KernelRun, RopeTableByTheLengthOfASegment) {
  testRopeByLength("long_frequencies = array<f32: 1.0, 0.03, 1.0, 0.03>",
                   [](double) { return 0.3; });
  // The expected factor is (2 L / 4 - 1)^(-2 / (4 - 2)).
  testRopeByLength("dynamic_factor = 2.0 : f64",
                   [](double length) { return 1 / (length / 2 - 1); });
}

/// The gradient rotates in the opposite direction.
static void testRope(qlora_dtype dtype, bool gradient) {
  constexpr int64_t kDim = 10, kHeads = 3, kTokens = 4;
  constexpr int64_t kRows = kTokens * kHeads;
  Buffer x = {dtype, kHeads * kDim + 6, kHeads,
              kTokens * (kHeads * kDim + 6)};
  Buffer table = {QLORA_DTYPE_F32, kDim, 1, kTokens * kDim};
  Buffer y = {dtype, kDim, 1, kRows * kDim};
  std::vector<Buffer> buffers = {x, table, table, y};
  if (gradient) // x, cos, sin, dy -> dx, dcos, dsin
    buffers = {x, table, table, x, y, y, y};
  RowKernel k(R"(func.func @f(%x: tensor<1x4x30xf32>, %c: tensor<1x4x10xf32>,
                              %s: tensor<1x4x10xf32>) {
    %y = model.rope %x, %c, %s : (tensor<1x4x30xf32>, tensor<1x4x10xf32>,
                                  tensor<1x4x10xf32>) -> tensor<1x4x30xf32>
    return
  })", buffers, gradient);
  k.runBothWays(kRows);
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kDim; ++c) {
      Buffer &from = k[gradient ? 3 : 0], &to = k[gradient ? 4 : 3];
      int64_t other = (c + kDim / 2) % kDim, token = r / kHeads * kDim;
      double sign = c < kDim / 2 ? -1 : 1;
      auto value = [&](int64_t i) { return from.at(from.index(r, i, kDim)); };
      double turned = gradient ? -sign * value(other) * k[2].at(token + other)
                               : sign * value(other) * k[2].at(token + c);
      double expected = value(c) * k[1].at(token + c) + turned;
      EXPECT_NEAR(to.at(r * kDim + c), expected,
                  tolerance(dtype, expected, 1));
    }
}

TEST(KernelRun, Rope) {
  testRope(QLORA_DTYPE_F32, false);
  testRope(QLORA_DTYPE_BF16, false);
}
TEST(KernelRun, RopeGradient) { testRope(QLORA_DTYPE_F32, true); }

//===----------------------------------------------------------------------===//
// swiglu, dropout, adamw
//===----------------------------------------------------------------------===//

static constexpr const char *kSwiglu = R"(
  func.func @f(%g: tensor<5x45xf32>, %u: tensor<5x45xf32>) {
    %y = model.glu silu %g, %u : tensor<5x45xf32>
    return
  })";

TEST(KernelRun, Swiglu) {
  for (qlora_dtype dtype : {QLORA_DTYPE_F32, QLORA_DTYPE_BF16}) {
    Buffer part = {dtype, 90, 1, 5 * 90}; // gate and up side by side
    RowKernel k(kSwiglu, {part, part, {dtype, 45, 1, 5 * 45}});
    k.runBothWays(5);
    for (int64_t i = 0; i < 5 * 45; ++i) {
      int64_t at = i / 45 * 90 + i % 45;
      double gate = k[0].at(at);
      double expected = gate / (1 + std::exp(-gate)) * k[1].at(at);
      EXPECT_NEAR(k[2].at(i), expected, tolerance(dtype, expected, 1));
    }
  }
}

TEST(KernelRun, SwigluGradient) {
  Buffer full = {QLORA_DTYPE_F32, 45, 1, 5 * 45};
  RowKernel k(kSwiglu, {full, full, full, full, full}, true);
  k.runBothWays(5);
  for (int64_t i = 0; i < 5 * 45; ++i) {
    double gate = k[0].at(i), up = k[1].at(i), dy = k[2].at(i);
    double sigmoid = 1 / (1 + std::exp(-gate));
    EXPECT_NEAR(k[3].at(i),
                dy * up * sigmoid * (1 + gate * (1 - sigmoid)), 1e-5);
    EXPECT_NEAR(k[4].at(i), dy * gate * sigmoid, 1e-5);
  }
}

TEST(KernelRun, Dropout) {
  Buffer full = {QLORA_DTYPE_F32, 35, 1, 9 * 35};
  RowKernel k(R"(func.func @f(%x: tensor<9x35xf32>) {
    %y = model.dropout %x {probability = 0.25 : f64, id = 42 : i64}
        : tensor<9x35xf32>
    return
  })", {full, full});
  k.step.seed = 0x123456789abcdef0;
  k.step.micro_batch = 77;
  k.runBothWays(9);
  int64_t kept = 0;
  for (int64_t i = 0; i < 9 * 35; ++i) {
    bool keep =
        qlora_uniform(k.step.seed, 77, 42, i / 35, i % 35) >= 0.25f;
    kept += keep;
    EXPECT_NEAR(k[1].at(i), keep ? k[0].at(i) / 0.75 : 0, 1e-6);
  }
  // A value is kept with probability 0.75. So 236 of 315 values are expected,
  // with a standard deviation of 7.7. Four standard deviations are allowed.
  EXPECT_NEAR(kept, 236, 31);
}

TEST(KernelRun, AdamW) {
  constexpr int64_t kElements = 2 * train::kFlatColumns;
  Buffer flat = {QLORA_DTYPE_F32, train::kFlatColumns, 1, kElements};
  Buffer scale = {QLORA_DTYPE_F32, 1, 1, 1};
  RowKernel k(R"(func.func @f(%p: tensor<2x1024xf32>, %s: tensor<1xf32>) {
    %a, %b, %c = train.adamw %p, %p, %p, %p, %s
        : (tensor<2x1024xf32>, tensor<2x1024xf32>, tensor<2x1024xf32>,
           tensor<2x1024xf32>, tensor<1xf32>)
        -> (tensor<2x1024xf32>, tensor<2x1024xf32>, tensor<2x1024xf32>)
    return
  })", {flat, flat, flat, flat, scale, flat, flat, flat});
  k.step.learning_rate = 1e-2f;
  k.step.beta1 = 0.9f;
  k.step.beta2 = 0.999f;
  k.step.epsilon = 1e-8f;
  k.step.weight_decay = 0.1f;
  k.step.bias_correction1 = 0.1f;
  k.step.bias_correction2_sqrt = std::sqrt(0.001f);
  for (int64_t i = 0; i < kElements; ++i)
    k[2].set(i, std::abs(k[2].at(i)));
  k.runBothWays(2);
  for (int64_t i = 0; i < kElements; ++i) {
    double g = k[3].at(i) * k[4].at(0);
    double m = 0.9 * k[1].at(i) + 0.1 * g;
    double v = 0.999 * k[2].at(i) + 0.001 * g * g;
    double p = k[0].at(i) * (1 - 1e-3) -
               1e-2 / 0.1 * m / (std::sqrt(v) / std::sqrt(0.001) + 1e-8);
    EXPECT_NEAR(k[5].at(i), p, 1e-5);
    EXPECT_NEAR(k[6].at(i), m, 1e-6);
    EXPECT_NEAR(k[7].at(i), v, 1e-6);
  }
  // In place, as in the update: results overwrite operands.
  k.runInPlace(5, 5);
  k.run(0, 2);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(k[i].memory, k[5 + i].memory);
  // The update ignores a gradient that is not finite.
  const auto before = k[0].memory;
  k[4].set(0, std::nan(""));
  k.run(0, 2);
  EXPECT_EQ(k[5].memory, before);
}
