// SPDX-License-Identifier: MIT

// Row operations of softmax, for column counts around multiples of 16, the
// number of SIMD lanes.

#include "runtime/Kernels/Cpu/Softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "runtime/Kernels/Rows.h"

namespace qlora {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kRows = 3;

std::vector<float> randomRows(int64_t columns, float least, float most) {
  std::mt19937 generator(static_cast<unsigned>(columns));
  std::uniform_real_distribution<float> distribution(least, most);
  std::vector<float> values(size_t(kRows * columns));
  for (float &value : values)
    value = distribution(generator);
  return values;
}

/// One unit in the last place of f32, at least 2^-149.
double unit(double exact) {
  return std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
}

TEST(Softmax, ExponentialsAreWithinOneUnit) {
  for (int64_t columns = 1; columns < 70; ++columns) {
    const std::vector<float> values = randomRows(columns, -86, 3);
    const std::vector<float> shifts = {0, 0.5f, -2};
    std::vector<float> wide(values.size()), sums(kRows);
    std::vector<uint16_t> narrow(values.size());
    exponentiateRows({values.data(), kRows, columns, shifts.data(),
                      sums.data(), wide.data(), narrow.data()});
    for (int64_t row = 0; row < kRows; ++row) {
      double sum = 0;
      for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
        const double exact = std::exp(double(values[i] - shifts[row]));
        sum += exact;
        ASSERT_NEAR(wide[i], exact, 1.5 * unit(exact)) << values[i];
        ASSERT_EQ(narrow[i], qlora_f32_to_bf16(wide[i]));
      }
      ASSERT_NEAR(sums[row], sum, 1e-6 * sum);
    }
  }
}

TEST(Softmax, AnyOfItsResultsMayBeLeftOut) {
  const int64_t columns = 37;
  const std::vector<float> values = randomRows(columns, -9, 0);
  const std::vector<float> shifts(kRows, 0.25f);
  std::vector<float> both(values.size()), sums(kRows), alone(kRows);
  std::vector<uint16_t> narrow(values.size()), narrowAlone(values.size());
  exponentiateRows({values.data(), kRows, columns, shifts.data(), sums.data(),
                    both.data(), narrow.data()});
  exponentiateRows(
      {values.data(), kRows, columns, shifts.data(), alone.data()});
  EXPECT_EQ(alone, sums);
  exponentiateRows({values.data(), kRows, columns, shifts.data(), nullptr,
                    nullptr, narrowAlone.data()});
  EXPECT_EQ(narrowAlone, narrow);
  std::vector<float> inPlace = values;
  exponentiateRows({inPlace.data(), kRows, columns, shifts.data(), nullptr,
                    inPlace.data()});
  EXPECT_EQ(inPlace, both);
}

TEST(Softmax, ExtremesAreZeroInfinityAndNaN) {
  const std::vector<float> values = {-kInfinity, -1e30f, -87.5f, 88.3f,
                                     1e30f,      0.0f,   -0.0f,  NAN};
  const float shift = 0;
  std::vector<float> wide(values.size());
  std::vector<uint16_t> narrow(values.size());
  float sum = 0;
  exponentiateRows({values.data(), 1, int64_t(values.size()), &shift, &sum,
                    wide.data(), narrow.data()});
  EXPECT_EQ(wide[0], 0.0f);
  EXPECT_EQ(wide[1], 0.0f);
  EXPECT_EQ(wide[2], 0.0f);
  const double large = std::exp(double(88.3f));
  EXPECT_NEAR(wide[3], large, 2 * unit(large));
  EXPECT_EQ(wide[4], kInfinity);
  EXPECT_EQ(wide[5], 1.0f);
  EXPECT_EQ(wide[6], 1.0f);
  EXPECT_TRUE(std::isnan(wide[7]));
  EXPECT_TRUE(std::isnan(sum));
  EXPECT_TRUE(std::isnan(qlora_bf16_to_f32(narrow[7])));
}

TEST(Softmax, MaximaOfRows) {
  for (int64_t columns = 1; columns < 70; ++columns) {
    std::vector<float> values = randomRows(columns, -9, -1);
    for (int64_t row = 0; row < kRows; ++row)
      values[size_t(row * columns + (row * 31 + columns) % columns)] =
          float(row);
    std::vector<float> maxima(kRows);
    maximaOfRows(values.data(), kRows, columns, maxima.data());
    ASSERT_EQ(maxima, (std::vector<float>{0, 1, 2}));
  }
  const float none[] = {-kInfinity, -kInfinity};
  float maximum = 0;
  maximaOfRows(none, 1, 2, &maximum);
  EXPECT_EQ(maximum, -kInfinity);
}

TEST(Softmax, GradientsOfScores) {
  for (int64_t columns = 1; columns < 70; ++columns) {
    const std::vector<float> p = randomRows(columns, 0, 1);
    std::vector<float> gradients = randomRows(columns + 70, -2, 2);
    gradients.resize(p.size());
    const std::vector<float> before = gradients, means = {0.5f, -1, 0};
    std::vector<uint16_t> narrow(p.size());
    scoreGradients(p.data(), gradients.data(), kRows, columns, means.data(),
                   0.125f, narrow.data());
    ASSERT_EQ(gradients, before);
    scoreGradients(p.data(), gradients.data(), kRows, columns, means.data(),
                   0.125f, nullptr);
    for (size_t i = 0; i < p.size(); ++i) {
      const float mean = means[i / size_t(columns)];
      ASSERT_NEAR(gradients[i], 0.125 * p[i] * (double(before[i]) - mean),
                  1e-6);
      ASSERT_EQ(narrow[i], qlora_f32_to_bf16(gradients[i]));
    }
  }
}

TEST(Softmax, DotProducts) {
  for (int64_t count = 0; count < 70; ++count) {
    const std::vector<float> a = randomRows(count + 1, -1, 1);
    const std::vector<float> b = randomRows(count + 2, -1, 1);
    double exact = 0;
    for (int64_t i = 0; i < count; ++i)
      exact += double(a[size_t(i)]) * b[size_t(i)];
    ASSERT_NEAR(dotProduct(a.data(), b.data(), count), exact, 1e-5);
  }
}

} // namespace
} // namespace qlora
