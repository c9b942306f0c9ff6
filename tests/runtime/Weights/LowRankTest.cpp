// SPDX-License-Identifier: MIT

// Properties of low-rank factors, and of the residual that remains of a weight.

#include "runtime/Weights/LowRank.h"
#include "runtime/Weights/WeightFactors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace qlora {
namespace {

constexpr int64_t kRows = 37, kColumns = 21;

/// Returns deterministic values with decreasing singular values.
std::vector<float> someMatrix() {
  std::vector<float> w(kRows * kColumns);
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kColumns; ++c)
      for (int64_t k = 1; k < 12; ++k)
        w[static_cast<size_t>(r * kColumns + c)] += static_cast<float>(
            std::sin(double(k * r) * 1.7 + double(k)) *
            std::cos(double(k * c) * 0.9 - double(k)) / double(k * k));
  return w;
}

std::vector<float> transposed(const std::vector<float> &w) {
  std::vector<float> turned(w.size());
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kColumns; ++c)
      turned[static_cast<size_t>(c * kRows + r)] =
          w[static_cast<size_t>(r * kColumns + c)];
  return turned;
}

/// Returns W - scale * B A.
std::vector<double> rest(const std::vector<float> &w, const LowRank &factors,
                         int64_t rank, double scale) {
  std::vector<double> left(w.begin(), w.end());
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kColumns; ++c)
      for (int64_t k = 0; k < rank; ++k)
        left[static_cast<size_t>(r * kColumns + c)] -=
            scale * double(factors.b[static_cast<size_t>(r * rank + k)]) *
            double(factors.a[static_cast<size_t>(k * kColumns + c)]);
  return left;
}

double farthest(const std::vector<double> &x, const std::vector<double> &y) {
  double distance = 0;
  for (size_t i = 0; i < x.size(); ++i)
    distance = std::max(distance, std::abs(x[i] - y[i]));
  return distance;
}

} // namespace

TEST(LowRank, WhatTheLargestLeaveIsOrthogonalToThem) {
  const std::vector<float> w = someMatrix();
  constexpr int64_t kRank = 3;
  const LowRank factors = largestFactors({w, kRows, kColumns}, kRank, 2.0);
  ASSERT_EQ(factors.a.size(), size_t(kRank * kColumns));
  ASSERT_EQ(factors.b.size(), size_t(kRows * kRank));
  const std::vector<double> left = rest(w, factors, kRank, 2.0);
  double before = 0;
  for (int64_t k = 0; k < kRank; ++k) {
    double a = 0, b = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      double product = 0;
      for (int64_t c = 0; c < kColumns; ++c)
        product += left[size_t(r * kColumns + c)] *
                   double(factors.a[size_t(k * kColumns + c)]);
      EXPECT_NEAR(product, 0, 1e-5);
      b += std::pow(factors.b[size_t(r * kRank + k)], 2);
    }
    for (int64_t c = 0; c < kColumns; ++c)
      a += std::pow(factors.a[size_t(k * kColumns + c)], 2);
    EXPECT_NEAR(a, b, 1e-4 * a); // both factors contain the square root of S
    EXPECT_TRUE(k == 0 || a < before);
    before = a;
  }
}

TEST(LowRank, TurnedAndIteratedFactorsMakeTheSameProduct) {
  const std::vector<float> w = someMatrix(), turned = transposed(w);
  constexpr int64_t kRank = 4;
  const auto expected =
      rest(w, largestFactors({w, kRows, kColumns}, kRank, 0.5), kRank, 0.5);
  EXPECT_LT(farthest(rest(w,
                          largestFactors({turned, kRows, kColumns, true}, kRank,
                                         0.5),
                          kRank, 0.5),
                     expected),
            1e-5);
  std::vector<float> start(kColumns * kRank);
  for (size_t i = 0; i < start.size(); ++i)
    start[i] = std::sin(float(i * i));
  const auto after = [&](int64_t iterations) {
    return farthest(rest(w,
                         nearLargestFactors({w, kRows, kColumns}, kRank, 0.5,
                                            iterations, start),
                         kRank, 0.5),
                    expected);
  };
  EXPECT_GT(after(0), 1e-3);
  EXPECT_LT(after(40), 1e-5);
}

TEST(LowRank, OrthogonalFactorsHaveTheFirstColumns) {
  const std::vector<float> w = someMatrix();
  constexpr int64_t kRank = 5;
  const LowRank factors = orthogonalFactors({w, kRows, kColumns}, kRank);
  const std::vector<double> left = rest(w, factors, kRank, 1.0);
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kRank; ++c)
      EXPECT_NEAR(left[size_t(r * kColumns + c)], 0, 1e-5);
  for (int64_t k = 0; k < kRank; ++k) { // R is triangular, Q orthonormal
    for (int64_t c = 0; c < k; ++c)
      EXPECT_NEAR(factors.a[size_t(k * kColumns + c)], 0, 1e-5);
    double length = 0;
    for (int64_t r = 0; r < kRows; ++r)
      length += std::pow(factors.b[size_t(r * kRank + k)], 2);
    EXPECT_NEAR(length, 1, 1e-5);
  }
}

TEST(LowRank, AreTakenFromAnyWindowOfAFile) {
  const std::vector<float> w = someMatrix();
  constexpr int64_t kRank = 2;
  qlora_parameter a = {}, b = {};
  a.shape[0] = b.shape[1] = kRank;
  a.shape[1] = kColumns;
  b.shape[0] = kRows;
  for (const bool isTransposed : {false, true}) {
    const std::vector<float> file = isTransposed ? transposed(w) : w;
    const WeightFactors factors = {
        nullptr,
        &a,
        &b,
        2.0,
        isTransposed,
        largestFactors({file, kRows, kColumns, isTransposed}, kRank, 2.0)};
    const auto expected = rest(w, factors.values, kRank, 2.0);
    constexpr int64_t kWindow = 50; // ends within rows
    for (int64_t first = 0; first < kRows * kColumns; first += kWindow) {
      const int64_t count = std::min(kWindow, kRows * kColumns - first);
      std::vector<float> window(file.begin() + first,
                                file.begin() + first + count);
      factors.subtractFrom(first, QLORA_DTYPE_F32,
                           {reinterpret_cast<uint8_t *>(window.data()),
                            window.size() * sizeof(float)});
      for (int64_t i = first; i < first + count; ++i) {
        const int64_t row = isTransposed ? i % kRows : i / kColumns;
        const int64_t column = isTransposed ? i / kRows : i % kColumns;
        EXPECT_NEAR(window[size_t(i - first)],
                    expected[size_t(row * kColumns + column)], 1e-5);
      }
    }
  }
}

} // namespace qlora
