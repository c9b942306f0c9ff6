// SPDX-License-Identifier: MIT

// Learning rates equal transformers.get_scheduler's (5.23, base rate 0.002).

#include "runtime/Session/LearningRate.h"

#include <gtest/gtest.h>

#include <vector>

using qlora::LearningRate;

TEST(LearningRate, IsThatOfTransformers) {
  struct Expected {
    int64_t step;
    double rate;
  };
  struct {
    const char *scheduler;
    int64_t warmup, total;
    std::vector<Expected> rates;
  } cases[] = {
      {"constant", 3, 10, {{0, 0.002}, {1, 0.002}, {9, 0.002}}},
      {"constant_with_warmup",
       3,
       10,
       {{0, 0.0},
        {1, 0.0006666666666666666},
        {2, 0.0013333333333333333},
        {3, 0.002},
        {9, 0.002}}},
      {"linear",
       4,
       20,
       {{0, 0.0}, {1, 0.0005}, {4, 0.002}, {10, 0.00125}, {19, 0.000125}}},
      {"linear", 0, 5, {{0, 0.002}, {1, 0.0016}, {2, 0.0012}, {4, 0.0004}}},
      {"cosine",
       3,
       20,
       {{0, 0.0},
        {1, 0.0006666666666666666},
        {3, 0.002},
        {10, 0.0012736629900720832},
        {19, 1.7026900316098216e-05}}},
      {"cosine",
       0,
       7,
       {{0, 0.002},
        {1, 0.001900968867902419},
        {3, 0.0012225209339563144},
        {6, 9.903113209758097e-05}}},
      {"linear",
       30,
       20,
       {{1, 6.666666666666667e-05}, {19, 0.0012666666666666666}}},
  };
  for (const auto &c : cases) {
    LearningRate rate{0.002, c.scheduler, c.warmup, c.total};
    for (const Expected &expected : c.rates)
      EXPECT_DOUBLE_EQ(rate.at(expected.step), expected.rate)
          << c.scheduler << " " << expected.step;
  }
}

TEST(LearningRate, WarmupStepsWinOverRatio) {
  const auto warmup = [](int64_t steps, double ratio, int64_t total) {
    return LearningRate::warmupOf(steps, ratio, "transformers", total);
  };
  EXPECT_EQ(warmup(5, 0.5, 100), 5);
  EXPECT_EQ(warmup(0, 0.03, 101), 4); // ceil(3.03)
  EXPECT_EQ(warmup(0, 0, 100), 0);
}

TEST(LearningRate, WarmupOfAxolotl) {
  const auto warmup = [](double ratio, int64_t total) {
    return LearningRate::warmupOf(0, ratio, "axolotl", total);
  };
  EXPECT_EQ(warmup(0.03, 101), 3); // int(3.03)
  EXPECT_EQ(warmup(0.01, 101), 2); // 1 becomes 2
  EXPECT_EQ(warmup(0.01, 99), 0);
  EXPECT_EQ(warmup(0, 110), 3); // min(int(0.03 * steps), 100)
  EXPECT_EQ(warmup(0, 50), 2);
  EXPECT_EQ(warmup(0, 10000), 100);
  EXPECT_EQ(warmup(0.03, 10000), 300);
  EXPECT_EQ(LearningRate::warmupOf(7, 0.03, "axolotl", 10000), 7);
}
