// SPDX-License-Identifier: MIT

// Quantizing to and from GGUF's types, compared with the Python package gguf
// and with llama.cpp's quantizers (Inputs/gguf/make_gguf.py).

#include "runtime/Gguf/GgufQuantize.h"

#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Weights/Safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace qlora {
namespace {

/// Errors at most this many times llama.cpp's are accepted, for rows of each
/// kind.
constexpr float kMostError = 1.02f;

const SafetensorsFile &references() {
  static const SafetensorsFile file =
      SafetensorsFile::open(QLORA_TEST_INPUTS "/gguf/blocks.safetensors")
          .value();
  return file;
}

template <typename Value> std::vector<Value> read(const std::string &name) {
  const SafetensorsTensor *tensor = references().get(name).value();
  std::vector<Value> values(tensor->byteCount() / sizeof(Value));
  EXPECT_TRUE(references()
                  .read(*tensor, 0,
                        {reinterpret_cast<uint8_t *>(values.data()),
                         tensor->byteCount()})
                  .isOk());
  return values;
}

/// Returns the type's name in the package gguf.
std::string nameOf(const GgufTypeInfo &info) {
  std::string name(info.name);
  std::ranges::transform(name, name.begin(), [](unsigned char c) {
    return static_cast<char>(std::toupper(c));
  });
  return name;
}

std::vector<uint8_t> quantized(GgufType type, std::span<const float> values,
                               int64_t columns) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<uint8_t> blocks(static_cast<size_t>(ggufBytes(type, count)));
  const Status status = quantizeGguf(type, values.data(), count / columns,
                                     columns, blocks.data());
  EXPECT_TRUE(status.isOk()) << status.message();
  return blocks;
}

std::vector<float> roundTrip(GgufType type, std::span<const float> values,
                             int64_t columns) {
  const std::vector<uint8_t> blocks = quantized(type, values, columns);
  std::vector<float> out(values.size());
  dequantizeGguf(type, blocks.data(), static_cast<int64_t>(values.size()),
                 out.data());
  return out;
}

double rootMeanSquare(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

class EachType : public testing::TestWithParam<GgufTypeInfo> {
protected:
  const GgufTypeInfo &info = GetParam();
  GgufType type = info.type;
};

INSTANTIATE_TEST_SUITE_P(
    Gguf, EachType, testing::ValuesIn(ggufTypes().begin(), ggufTypes().end()),
    [](const auto &test) { return nameOf(test.param); });

TEST_P(EachType, HasThePackagesValues) {
  if (type == GgufType::kF32)
    return;
  const std::vector<uint8_t> blocks = read<uint8_t>(nameOf(info) + ".blocks");
  const std::vector<float> expected = read<float>(nameOf(info) + ".values");
  ASSERT_EQ(ggufBytes(type, static_cast<int64_t>(expected.size())),
            static_cast<int64_t>(blocks.size()));
  std::vector<float> values(expected.size());
  dequantizeGguf(type, blocks.data(), static_cast<int64_t>(values.size()),
                 values.data());
  EXPECT_EQ(std::memcmp(values.data(), expected.data(),
                        values.size() * sizeof(float)),
            0);
}

TEST_P(EachType, IsAsCloseAsLlamaCpp) {
  constexpr size_t kColumns = 512, kRowsOfAKind = 6;
  if (info.blockValues == 1)
    return;
  const std::vector<float> sample = read<float>("sample");
  const std::vector<float> errors = read<float>(nameOf(info) + ".errors");
  const std::vector<float> values = roundTrip(type, sample, kColumns);
  for (size_t first = 0; first < errors.size(); first += kRowsOfAKind) {
    double ours = 0, theirs = 0;
    for (size_t row = first; row < first + kRowsOfAKind; ++row) {
      const std::span<const float> from(&sample[row * kColumns], kColumns);
      const std::span<const float> to(&values[row * kColumns], kColumns);
      ours += std::pow(rootMeanSquare(from, to), 2);
      theirs += std::pow(errors[row], 2);
    }
    EXPECT_LE(std::sqrt(ours), kMostError * std::sqrt(theirs))
        << "rows " << first << " and on";
    RecordProperty(fmt::format("rows{}", first),
                   fmt::format("{:.4f}", std::sqrt(ours / theirs)));
  }
}

TEST_P(EachType, KeepsZeros) {
  const std::vector<float> zeros(512, -0.0f);
  for (float value : roundTrip(type, zeros, 512))
    EXPECT_EQ(value, 0);
}

TEST_P(EachType, KeepsOneValuePerBlock) {
  std::vector<float> values(512, 0);
  values[3] = -1, values[300] = 0.5f;
  const std::vector<float> after = roundTrip(type, values, 512);
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(after[i], values[i], 1e-3) << i;
}

TEST_P(EachType, KeepsEqualValues) {
  for (float value : {0.7f, -0.7f}) {
    const std::vector<float> values(256, value);
    for (float after : roundTrip(type, values, 256))
      EXPECT_NEAR(after, value, 3e-3);
  }
}

TEST_P(EachType, AcceptsExtremeMagnitudes) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> unit(-1, 1);
  for (float scale : {info.largest, 1e-6f, 1e-12f, 1e-30f,
                      std::numeric_limits<float>::denorm_min()}) {
    std::vector<float> values(512);
    for (float &value : values)
      value = unit(random) * scale;
    values[100] = scale, values[200] = -scale;
    const std::vector<float> after = roundTrip(type, values, 256);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(std::isfinite(after[i])) << scale;
      // Small values may become 0: the scales are f16.
      EXPECT_LE(std::abs(after[i] - values[i]),
                std::max(0.1f * scale, 1e-6f));
    }
  }
}

TEST_P(EachType, RefusesValuesThatAreNotFinite) {
  std::vector<uint8_t> out(4096);
  for (float value : {std::numeric_limits<float>::quiet_NaN(),
                      -std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(1024, 0.5f);
    values[515] = value;
    const Status status =
        quantizeGguf(type, values.data(), 2, 512, out.data());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("row 1, column 3"), std::string::npos)
        << status.message();
  }
}

TEST_P(EachType, RefusesValuesAboveItsLargest) {
  if (type == GgufType::kF32)
    return;
  std::vector<uint8_t> out(4096);
  std::vector<float> values(512, 0.5f);
  values[7] = std::nextafter(info.largest,
                             std::numeric_limits<float>::infinity());
  const Status status = quantizeGguf(type, values.data(), 1, 512, out.data());
  EXPECT_NE(status.message().find("--outtype bf16"), std::string::npos);
}

TEST_P(EachType, HasTheSameBitsForAnyNumberOfThreads) {
  const std::vector<float> sample = read<float>("sample");
  const std::vector<uint8_t> several = quantized(type, sample, 512);
  const ScopedThreads one(1);
  EXPECT_EQ(several, quantized(type, sample, 512));
}

} // namespace
} // namespace qlora
