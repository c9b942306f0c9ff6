// SPDX-License-Identifier: MIT

// Compares every decoder of 4-bit codes that this CPU supports with
// StoredTensor::element, bit for bit, and its dot products with fused
// multiply-adds.

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/RowDots.h"
#include "runtime/Kernels/Cpu/RunDots.h"
#include "runtime/Kernels/Rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace qlora {
namespace {

constexpr float kGuard = 77;

/// A tensor of random codes. Some scales are NaN, infinite, or so that a value
/// is exactly between two bf16 values.
struct Tensor {
  StoredLayout layout;
  std::vector<uint8_t> bytes;

  explicit Tensor(const StoredLayout &layout)
      : layout(layout), bytes(size_t(layout.bytes)) {
    std::mt19937 generator(3);
    for (uint8_t &byte : bytes)
      byte = uint8_t(generator());
    const auto floats = [&](int64_t offset) {
      return reinterpret_cast<float *>(bytes.data() + offset);
    };
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int code = 0; code < 16; ++code)
      floats(layout.codeBook)[code] = uniform(generator);
    floats(layout.codeBook)[5] = 1 + 0x1p-8f;
    floats(layout.codeBook)[6] = 1 + 3 * 0x1p-8f;
    for (int64_t i = 0; !layout.doubleQuant && i < layout.blocks; ++i)
      floats(layout.scales)[i] = uniform(generator);
    for (int64_t i = 0; i < layout.nestedBlocks; ++i)
      floats(layout.nestedAbsmax)[i] = uniform(generator);
    for (int64_t i = 0; layout.doubleQuant && i < 256; ++i)
      floats(layout.nestedMap)[i] = uniform(generator);
    floats(layout.correction)[0] = layout.doubleQuant ? uniform(generator) : 1;
    if (layout.doubleQuant || layout.blocks < 4)
      return;
    floats(layout.scales)[0] = 1;
    floats(layout.scales)[1] = std::numeric_limits<float>::infinity();
    floats(layout.scales)[2] = qlora_from_bits(0x7fffffff);
  }

  StoredWeight weight(const DecodeRun *decoder) const {
    StoredWeight weight = StoredWeight::of(layout, 96);
    if (weight.decodeRun)
      weight.decodeRun = decoder;
    return weight;
  }
  float element(int64_t i) const {
    return StoredTensor::of(layout, bytes.data()).element(i);
  }
};

std::vector<const DecodeRun *> decoders() {
  std::vector<const DecodeRun *> all = {nullptr};
  for (const DecodeRun *one : {findAvx512DecodeRun(), findAvx2DecodeRun()})
    if (one)
      all.push_back(one);
  return all;
}

const StoredLayout kLayouts[] = {
    StoredLayout::of(QLORA_DTYPE_NF4, 96 * 20, 64, true),
    StoredLayout::of(QLORA_DTYPE_NF4, 96 * 20, 64, false),
    StoredLayout::of(QLORA_DTYPE_FP4, 96 * 90, 4096, true),
    StoredLayout::of(QLORA_DTYPE_MXFP4, 96 * 20, 32, true),
    StoredLayout::of(QLORA_DTYPE_INT4, 96 * 20, 16, false),
    StoredLayout::of(QLORA_DTYPE_INT4, 61 * 20, 61, false),
    StoredLayout::of(QLORA_DTYPE_INT4, 96 * 20, 96, false)};

/// Equal bits; NaNs of any payload are equal.
bool isSame(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (a != a && b != b);
}

TEST(DecodeRun, HasTheBitsOfAnElement) {
  for (const StoredLayout &layout : kLayouts) {
    const Tensor tensor(layout);
    for (const DecodeRun *decoder : decoders())
      for (int64_t first : {0, 1, 31, 64, 97, 511})
        for (int64_t count : {1, 2, 31, 32, 33, 64, 129, 600}) {
          const StoredWeight weight = tensor.weight(decoder);
          std::vector<float> exact(size_t(count) + 1, kGuard), rounded = exact;
          std::vector<uint16_t> narrow(size_t(count) + 1, 7);
          const uint8_t *const bytes = tensor.bytes.data();
          weight.decodeWide(bytes, first, count, QLORA_DTYPE_F32, exact.data());
          weight.decodeWide(bytes, first, count, QLORA_DTYPE_BF16,
                            rounded.data());
          weight.decodePart(bytes, {0, 1, first, count}, QLORA_DTYPE_BF16,
                            narrow.data());
          for (int64_t i = 0; i < count; ++i) {
            const float expected = tensor.element(first + i);
            ASSERT_TRUE(isSame(exact[size_t(i)], expected)) << i;
            ASSERT_TRUE(isSame(rounded[size_t(i)], qlora_round_bf16(expected)));
            ASSERT_TRUE(isSame(qlora_bf16_to_f32(narrow[size_t(i)]),
                               qlora_round_bf16(expected)));
          }
          EXPECT_EQ(exact.back(), kGuard);
          EXPECT_EQ(rounded.back(), kGuard);
          EXPECT_EQ(narrow.back(), 7);
        }
  }
}

/// Returns the lanes of RowDots for a row of the tensor, and a row of x.
std::vector<float> lanesOf(const StoredWeight &weight, const uint8_t *bytes,
                           int64_t row, qlora_dtype type, const float *x) {
  std::vector<float> values(static_cast<size_t>(weight.columns));
  weight.decodeWide(bytes, row * weight.columns, weight.columns, type,
                    values.data());
  std::vector<float> lanes(DecodeRun::kDotLanes);
  for (size_t i = 0; i < values.size(); ++i)
    lanes[i % lanes.size()] =
        std::fma(x[i], values[i], lanes[i % lanes.size()]);
  return lanes;
}

/// Returns the sum of magnitudes of the products.
float magnitudeOf(const std::vector<float> &lanes) {
  float sum = 0;
  for (float lane : lanes)
    sum += std::abs(lane);
  return sum;
}

/// Compares the lanes of all rows of the tensor with fused multiply-adds. Pairs
/// of products have other lanes, so only their sum is compared.
void checkDots(const Tensor &tensor, const StoredWeight &weight, int64_t rows,
               qlora_dtype type) {
  constexpr int64_t kColumns = 96 * 2, kLanes = RunDots::kLanes;
  const RunDots dots = RunDots::of(weight, rows, kColumns, type, type);
  if (!dots.exist())
    return;
  std::vector<float> x(size_t(kColumns * rows));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = float(i % 7) - 2.5f;
  const int64_t width = dots.padded(kColumns);
  std::vector<float> arranged(size_t(width * rows));
  auto *const bytes = reinterpret_cast<uint8_t *>(arranged.data());
  for (int64_t i = 0; i < rows; ++i)
    dots.arrange(QLORA_DTYPE_F32, x.data() + i * kColumns, kColumns,
                 bytes + i * width * dots.elementBytes());
  for (int64_t row = 0; row < 10; ++row) {
    std::vector<float> sums(size_t(rows * kLanes), 7.0f);
    dots.add(tensor.bytes.data(), {row * kColumns, kColumns, kColumns, 1},
             {bytes, width, rows, sums.data(), /*clears=*/true});
    for (int64_t i = 0; i < rows; ++i) {
      const float *const got = sums.data() + i * kLanes;
      const std::vector<float> lanes = lanesOf(weight, tensor.bytes.data(), row,
                                               type, x.data() + i * kColumns);
      const float expected = std::accumulate(lanes.begin(), lanes.end(), 0.0f);
      const float sum = std::accumulate(got, got + kLanes, 0.0f);
      EXPECT_EQ(std::isfinite(sum), std::isfinite(expected));
      if (!std::isfinite(expected))
        continue;
      EXPECT_NEAR(sum, expected, 1e-5f * (1 + magnitudeOf(lanes)));
      std::vector<float> both(got, got + kLanes), ordered = lanes;
      std::ranges::sort(both);
      std::ranges::sort(ordered);
      EXPECT_TRUE(dots.elementBytes() == 2 || both == ordered);
    }
  }
}

TEST(DecodeRun, LanesHaveTheProducts) {
  for (const StoredLayout &layout : kLayouts)
    for (qlora_dtype type : {QLORA_DTYPE_F32, QLORA_DTYPE_BF16})
      for (const DecodeRun *decoder : decoders()) {
        const Tensor tensor(layout);
        StoredWeight weight = tensor.weight(decoder);
        weight.columns = 96 * 2;
        const bool isWhole = layout.block % RunDots::kLanes == 0;
        EXPECT_EQ(RunDots::of(weight, 1, weight.columns, type, type).exist(),
                  isWhole && decoder);
        for (int64_t rows : {1, 2, 7, 16})
          checkDots(tensor, weight, rows, type);
      }
}

/// Compares products of `rows` rows with rows of a floating-point weight, which
/// are further apart than their elements, with sums in f64. The weight ends
/// after its last element.
template <typename W>
void checkDense(qlora_dtype dtype, qlora_dtype type, int64_t rows,
                int64_t depth) {
  constexpr int64_t kOutputs = 3;
  const int64_t stride = depth + 5;
  const StoredWeight weight = StoredWeight::dense(dtype, stride);
  const RunDots dots = RunDots::of(weight, rows, depth, type, type);
  if (!dots.exist())
    return;
  const auto valueOf = [](int64_t i) { return float(i % 11) - 4.25f; };
  std::vector<W> weights(size_t(stride * (kOutputs - 1) + depth));
  for (size_t i = 0; i < weights.size(); ++i)
    narrow(std::vector{valueOf(int64_t(i))}.data(), dtype, &weights[i], 1);
  std::vector<float> x(static_cast<size_t>(rows * depth));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = float(i % 7) - 2.5f;
  const int64_t width = dots.padded(depth);
  std::vector<float> arranged(size_t(width * rows), 7.0f);
  auto *const bytes = reinterpret_cast<uint8_t *>(arranged.data());
  for (int64_t row = 0; row < rows; ++row)
    dots.arrange(QLORA_DTYPE_F32, x.data() + row * depth, depth,
                 bytes + row * width * dots.elementBytes());
  std::vector<float> lanes(size_t(kOutputs * rows * RunDots::kLanes), 7.0f);
  dots.add(weights.data(), {0, depth, stride, kOutputs},
           {bytes, width, rows, lanes.data(), /*clears=*/true});
  std::vector<float> sums(size_t(kOutputs * rows));
  RowDots::sumsOfLanes(lanes.data(), kOutputs * rows, sums.data());
  for (int64_t i = 0; i < kOutputs * rows; ++i) {
    double expected = 0;
    for (int64_t k = 0; k < depth; ++k)
      expected += double(x[size_t(i % rows * depth + k)]) *
                  valueOf(i / rows * stride + k);
    EXPECT_NEAR(sums[size_t(i)], expected, 1e-4 * double(depth));
    EXPECT_EQ(sums[size_t(i)],
              RowDots::sumOfLanes(lanes.data() + i * RunDots::kLanes));
  }
}

TEST(DecodeRun, DenseRowsHaveAnyDepth) {
  for (qlora_dtype type : {QLORA_DTYPE_F32, QLORA_DTYPE_BF16})
    for (int64_t rows : {1, 3, 8, 15})
      for (int64_t depth : {8, 16, 40, 64, 100, 256}) {
        checkDense<float>(QLORA_DTYPE_F32, type, rows, depth);
        checkDense<uint16_t>(QLORA_DTYPE_BF16, type, rows, depth);
      }
}

} // namespace
} // namespace qlora
