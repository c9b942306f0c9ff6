// SPDX-License-Identifier: MIT

// Packs the rows of a step: every row occurs once, no micro-batch exceeds its
// bucket, ranks are balanced, and packing never costs more than padding.

#include "runtime/Data/StepPacking.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

using namespace qlora;

using Lengths = std::vector<int64_t>;

/// Returns the cost of the most loaded rank, including padding to its buckets.
static double costOf(const StepPlan &plan, const Lengths &lengths,
                     const PackingShape &shape) {
  std::vector<double> ranks(shape.ranks);
  for (size_t i = 0; i < plan.size(); ++i) {
    int64_t tokens = 0;
    double cost = 0;
    for (int64_t row : plan[i]) {
      tokens += lengths[row];
      cost += shape.costs.ofRow(lengths[row]);
    }
    const int64_t bucket = bucketFor(tokens, shape.buckets);
    ranks[i % shape.ranks] +=
        cost + shape.costs.token * static_cast<double>(bucket - tokens);
  }
  return *std::max_element(ranks.begin(), ranks.end());
}

static void expectWhole(const StepPlan &plan, const Lengths &lengths,
                        const PackingShape &shape) {
  ASSERT_FALSE(plan.empty());
  EXPECT_EQ(plan.size() % shape.ranks, 0u);
  EXPECT_LE(static_cast<int64_t>(plan.size()),
            shape.accumulation * shape.ranks);
  Lengths seen;
  for (const std::vector<int64_t> &rows : plan) {
    int64_t tokens = 0;
    for (int64_t row : rows)
      tokens += lengths[row];
    EXPECT_LE(tokens, shape.buckets.back());
    EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
    seen.insert(seen.end(), rows.begin(), rows.end());
  }
  std::sort(seen.begin(), seen.end());
  Lengths all(lengths.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

TEST(StepPacking, EightShortRowsAreOneBucket) {
  const PackingShape shape = {{512, 1024, 2048, 4096}, 8, 1, 1, {1, 0.001}};
  const Lengths lengths = {40, 512, 100, 170, 90, 60, 300, 88}; // 1360 tokens
  EXPECT_EQ(packStep(lengths, shape),
            (StepPlan{{0, 1, 2, 3, 4, 5, 6, 7}}));
}

TEST(StepPacking, RanksGetEqualShares) {
  const PackingShape shape = {{64, 128, 256}, 4, 1, 2, {1, 0}};
  const Lengths lengths = {64, 10, 10, 10, 10, 10, 10, 4};
  const StepPlan plan = packStep(lengths, shape);
  EXPECT_EQ(plan, (StepPlan{{0}, {1, 2, 3, 4, 5, 6, 7}}));
}

TEST(StepPacking, PairsCountWhereAttentionDoes) {
  // If the cost counts tokens, {100, 20} and {60, 60} are balanced. If it
  // counts pairs of tokens, as attention does, the row of 100 tokens is alone.
  const Lengths lengths = {100, 60, 60, 20};
  EXPECT_EQ(packStep(lengths, {{240}, 2, 1, 2, {1, 0}}),
            (StepPlan{{0, 3}, {1, 2}}));
  EXPECT_EQ(packStep(lengths, {{240}, 2, 1, 2, {1, 1}}),
            (StepPlan{{0}, {1, 2, 3}}));
}

TEST(StepPacking, FasterRanksGetMoreTokens) {
  // Each rank has one micro-batch, and the faster rank's sequence is longer.
  PackingShape shape = {{16, 32, 48, 64}, 8, 1, 2, {1, 0}, {3, 1}};
  const Lengths lengths(8, 8);
  StepPlan plan = packStep(lengths, shape);
  expectWhole(plan, lengths, shape);
  EXPECT_EQ(plan[0].size(), 6u);
  EXPECT_EQ(plan[1].size(), 2u);
  // A sequence takes as many rows as fit; the second rank takes the remaining
  // rows.
  shape.rows = 5;
  shape.buckets = {40};
  plan = packStep(lengths, shape);
  expectWhole(plan, lengths, shape);
  EXPECT_EQ(plan[0].size(), 5u);
}

TEST(StepPacking, FullRowsStayAsTheyAre) {
  const PackingShape shape = {{64, 128}, 2, 3, 2, {1, 0}};
  const Lengths lengths(12, 64);
  const StepPlan plan = packStep(lengths, shape);
  EXPECT_EQ(plan.size(), 6u);
  expectWhole(plan, lengths, shape);
}

TEST(StepPacking, AStepWithoutRowsHasEmptyMicroBatches) {
  EXPECT_EQ(packStep({}, {{64}, 2, 3, 2, {}}), (StepPlan{{}, {}}));
  EXPECT_EQ(packStep(Lengths{9}, {{64}, 2, 3, 2, {}}), (StepPlan{{0}, {}}));
}

TEST(StepPacking, RandomStepsAreWholeAndNeverDearerThanPadded) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    const auto below = [&](int64_t end) {
      return static_cast<int64_t>(random() % end);
    };
    PackingShape shape;
    shape.rows = 1 + below(8);
    shape.accumulation = 1 + below(4);
    shape.ranks = 1 + below(4);
    const int64_t longest = 8 + below(120);
    const int64_t capacity = shape.rows * longest;
    shape.buckets = {capacity / 2 + 1, capacity / 2 + 1 + capacity / 4,
                     capacity};
    shape.buckets.erase(
        std::unique(shape.buckets.begin(), shape.buckets.end()),
        shape.buckets.end());
    shape.costs = {1, 0.001 * static_cast<double>(below(20))};
    PackingShape unequal = shape;
    for (int64_t rank = 0; rank < shape.ranks; ++rank)
      unequal.speeds.push_back(1 + static_cast<double>(below(5)));
    Lengths lengths(
        below(shape.rows * shape.accumulation * shape.ranks + 1));
    for (int64_t &length : lengths)
      length = 1 + below(below(3) == 0 ? longest : 1 + longest / 4);
    const StepPlan plan = packStep(lengths, shape);
    expectWhole(plan, lengths, shape);
    // In the padded step, each rank has equally many full micro-batches.
    PackingShape padded = shape;
    padded.buckets = {capacity};
    StepPlan given(shape.accumulation * shape.ranks);
    for (size_t row = 0; row < lengths.size(); ++row)
      given[row / shape.rows].push_back(static_cast<int64_t>(row));
    EXPECT_LE(costOf(plan, lengths, shape), costOf(given, lengths, padded));
    EXPECT_EQ(plan, packStep(lengths, shape));
    expectWhole(packStep(lengths, unequal), lengths, unequal);
  }
}
