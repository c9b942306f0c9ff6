// SPDX-License-Identifier: MIT

// Tests which differences between runs are significant, and which are noise.

#include "runtime/Watch/RunComparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

using namespace qlora;
using testing::HasSubstr;
using testing::Not;

/// Returns 40 windows with a mean of `rate` tokens per second and 5 % of noise.
static std::vector<SpeedWindow> windows(double rate, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(1, 0.05);
  std::vector<SpeedWindow> all;
  for (int i = 0; i < 40; ++i)
    all.push_back({1000, 1000 / (rate * noise(random))});
  return all;
}

TEST(RunComparison, OneDistributionIsATieAndTenPercentIsNot) {
  int ties = 0;
  for (unsigned seed = 1; seed <= 40; ++seed)
    ties += speedRatio(windows(500, 2 * seed), windows(500, 2 * seed + 1))
                ->holds(1);
  EXPECT_GE(ties, 34); // 38 of 40 are expected
  const Estimate faster = *speedRatio(windows(550, 1), windows(500, 2));
  EXPECT_NEAR(faster.value, 1.1, 0.03);
  EXPECT_FALSE(faster.holds(1));
  EXPECT_LT(faster.low, faster.value);
  EXPECT_GT(faster.high, faster.value);
  EXPECT_FALSE(speedRatio(windows(1, 1), {{1, 1}, {1, 1}}));
}

TEST(RunComparison, PairsSeeWhatNoiseOfStepsHides) {
  std::mt19937 random(7);
  std::normal_distribution<double> noise(2, 0.5), little(0.01, 0.005);
  std::vector<double> first, run;
  for (int i = 0; i < 60; ++i) {
    first.push_back(noise(random));
    run.push_back(first.back() + little(random));
  }
  EXPECT_TRUE(meanDifference(run, first, false)->holds(0));
  EXPECT_FALSE(meanDifference(run, first, true)->holds(0));
  const Estimate same = *meanDifference(first, first, true);
  EXPECT_EQ(same.low, 0);
  EXPECT_EQ(same.high, 0);
}

static RunFolder runOf(const std::string &name, int ranks, double rate,
                       double loss) {
  std::string lines;
  for (int step = 1; step <= 20; ++step)
    lines +=
        fmt::format("{{\"step\":{0},\"loss\":{1},\"tokens_per_second\":{2},"
                    "\"num_input_tokens_seen\":{3},\"memory_bytes\":{4},"
                    "\"step_time\":0.4,\"exposed_communication\":{5}}}\n",
                    step, loss + 1.0 / step, rate * (1 + 0.01 * (step % 3)),
                    100 * step, 1 << 20, step == 1 ? 9 : 0.1);
  RunFolder run{.name = name, .logged = LoggedLines(lines)};
  run.environment = {{"ranks", ranks}};
  run.plan = {{"planned_bytes", 3 << 20}};
  return run;
}

TEST(RunComparison, TheTableHasSpeedMemoryLossAndVerdicts) {
  const std::vector<RunFolder> runs = {runOf("one", 1, 500, 2),
                                       runOf("two <b>", 2, 900, 2),
                                       runOf("worse", 1, 500, 2.5)};
  const auto compared = compareRuns(runs);
  EXPECT_NEAR(compared[1].speedUp->value, 1.8, 0.02);
  EXPECT_NEAR(compared[1].efficiency, 0.9, 0.01);
  EXPECT_TRUE(std::isnan(compared[2].efficiency));
  EXPECT_EQ(compared[0].peak, 1 << 20);
  const std::string table = comparisonTable(compared);
  for (const char *part : {"faster", "90 %", "25.0 %", "3.0 MiB", "the same",
                           "higher", "+0.5000 to +0.5000"})
    EXPECT_THAT(table, HasSubstr(part));
  const std::string page = comparisonPage(runs, compared);
  for (const char *part : {"Loss against tokens", "Loss against time",
                           "two \\u003cb>", "faster"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, Not(HasSubstr("<b>")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST(RunComparison, ALineWithoutARateEndsNoCurve) {
  RunFolder run = runOf("gap", 1, 500, 2);
  run.logged.steps[5]["tokens_per_second"] = nullptr;
  const std::vector<RunFolder> runs = {run, run};
  const std::string page = comparisonPage(runs, compareRuns(runs));
  const size_t data = page.find("id=\"data\">") + 10;
  const auto charts = nlohmann::json::parse(
      page.substr(data, page.find("</script>", data) - data))["charts"];
  ASSERT_EQ(charts[1]["title"], "Loss against time");
  size_t marks = 0;
  for (const auto &line : charts[1]["lines"])
    for (const auto &point : line["points"])
      marks += !point[1].is_null();
  EXPECT_EQ(marks, 38u);
}

TEST(RunComparison, SumsBeyondNumbersHaveNoVerdict) {
  const std::vector<double> huge(8, 1e308), small(8, 1);
  EXPECT_TRUE(std::isnan(meanDifference(huge, small, false)->low));
}

TEST(RunComparison, OfARunThatLoggedNothingThereIsNoVerdict) {
  const std::vector<RunFolder> runs = {{.name = "empty"},
                                       runOf("two", 2, 900, 2)};
  const std::string table = comparisonTable(compareRuns(runs));
  EXPECT_THAT(table, HasSubstr("2,000"));
  EXPECT_THAT(table, Not(HasSubstr("verdict")));
  EXPECT_THAT(table, Not(HasSubstr("nan")));
}
