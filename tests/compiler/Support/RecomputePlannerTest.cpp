// SPDX-License-Identifier: MIT

// planRecompute: known cases, the peak compared with a simple count, random
// cases compared with all possible choices, and checkpointing of whole blocks.

#include "compiler/Support/RecomputePlanner.h"

#include <chrono>

#include <gtest/gtest.h>

#include "compiler/Support/RecomputeLayout.h"
#include "tests/compiler/Support/RecomputeProblems.h"

using namespace qlora;

namespace {

using Ops = std::vector<uint32_t>;

TEST(RecomputePlanner, NothingToDoWithinTheBudget) {
  RecomputeProblem problem = layered(4, 640);
  RecomputePlan all = planWithoutRecompute(problem);
  RecomputePlan plan = planRecompute(problem, all.peakBytes);
  EXPECT_EQ(plan.seconds, 0);
  for (const std::vector<uint32_t> &before : plan.before)
    EXPECT_TRUE(before.empty());
}

TEST(RecomputePlanner, TheEssaysExample) {
  // n, g and s have 100 cache lines of 64 bytes each and are computed from an
  // input. The backward reads them in the order s, g, n.
  ProblemBuilder b;
  uint32_t n = b.forward({}, 6400, 1);
  uint32_t g = b.forward({n}, 6400, 10);
  uint32_t s = b.forward({g}, 6400, 2);
  uint32_t y = b.forward({s}, 64, 10);
  uint32_t d = b.backward({y}, 64);
  d = b.backward({d, s}, 64);
  d = b.backward({d, g}, 64);
  b.backward({d, n}, 64);
  // All three are saved at the same time, together with y and a gradient.
  EXPECT_EQ(planWithoutRecompute(b.problem).peakBytes, 3u * 6400 + 128);
  // Recomputing s does not lower the peak, because g and n are still saved at
  // that time. If n is recomputed, only g and s are saved, for one second of
  // extra time.
  RecomputePlan plan = planRecompute(b.problem, 3 * 6400);
  EXPECT_EQ(plan.peakBytes, 2u * 6400 + 128);
  EXPECT_EQ(plan.seconds, 1);
  EXPECT_EQ(plan.before[0], Ops{7});
  // s is computed from g, so every plan has both alive at once.
  EXPECT_EQ(planRecompute(b.problem, 6400).peakBytes, 2u * 6400 + 128);
}

TEST(RecomputePlanner, CheapestChainPerByte) {
  // Two saved values of 640 bytes with costs 5 and 1, and a large temporary at
  // the start of the backward. One value must be recomputed: the cheap one.
  ProblemBuilder b;
  uint32_t x = b.forward({}, 64, 100);
  uint32_t dear = b.forward({x}, 640, 5);
  uint32_t cheap = b.forward({x}, 640, 1);
  uint32_t y = b.forward({dear, cheap}, 64, 1);
  uint32_t d = b.backward({y}, 6400);
  d = b.backward({d}, 64);
  d = b.backward({d, cheap, x}, 64);
  b.backward({d, dear}, 64);
  // y, x, dear, cheap and d: 64 + 64 + 640 + 640 + 6400.
  EXPECT_EQ(planWithoutRecompute(b.problem).peakBytes, 7808u);
  RecomputePlan plan = planRecompute(b.problem, 7168);
  EXPECT_EQ(plan.peakBytes, 7168u); // 7808 - 640
  EXPECT_EQ(plan.seconds, 1);
  EXPECT_EQ(plan.before[2], Ops{6}); // before the op that reads it
  EXPECT_TRUE(plan.before[1].empty());
}

TEST(RecomputePlanner, ViewsGoWithTheirSource) {
  ProblemBuilder b;
  uint32_t x = b.forward({}, 64, 100);
  uint32_t whole = b.forward({x}, 640, 1);
  uint32_t part = b.view(whole, 320);
  uint32_t y = b.forward({part}, 64, 1);
  uint32_t d = b.backward({y}, 6400);
  d = b.backward({d}, 64);
  b.backward({d, part, x}, 64);
  // y, x, whole and d: 64 + 64 + 640 + 6400. The view needs no memory.
  EXPECT_EQ(planWithoutRecompute(b.problem).peakBytes, 7168u);
  RecomputePlan plan = planRecompute(b.problem, 6528);
  EXPECT_EQ(plan.peakBytes, 6528u); // 7168 - 640
  EXPECT_EQ(plan.before[1], Ops{6});
  EXPECT_EQ(plan.before[2], Ops{6});
}

TEST(RecomputePlanner, ATiedResultTakesOverItsOperand) {
  ProblemBuilder b;
  uint32_t x = b.forward({}, 640, 0);
  b.forward({x}, 640, 1);
  b.tie(x);
  EXPECT_EQ(planWithoutRecompute(b.problem).peakBytes, 640u);
  // x is read again after the tied op, which then may not overwrite it.
  b.forward({x}, 64, 1);
  EXPECT_EQ(planWithoutRecompute(b.problem).peakBytes, 1280u);
}

TEST(RecomputePlanner, WhatIsBroughtBackStandsForTheValue) {
  ProblemBuilder b;
  uint32_t x = b.forward({}, 640, 100);
  uint32_t n = b.forward({x}, 640, 1);
  uint32_t y = b.forward({n}, 64, 1);
  uint32_t d = b.backward({y}, 6400);
  d = b.backward({d}, 64);
  uint32_t back = b.fetch(x);
  d = b.backward({d, n}, 64);
  b.backward({d, back}, 64);
  // n is saved for the backward, x is not: 64 + 640 + 6400.
  EXPECT_EQ(planWithoutRecompute(b.problem).peakBytes, 7104u);
  // n is recomputed from the fetched value, so x is neither saved nor
  // recomputed for it.
  for (const RecomputePlan &plan :
       {planRecompute(b.problem, 6464), planRecompute(b.problem, 1)}) {
    EXPECT_EQ(plan.peakBytes, 6464u); // 7104 - 640
    EXPECT_EQ(plan.seconds, 1);
    EXPECT_TRUE(plan.before[0].empty());
    EXPECT_EQ(plan.before[1], Ops{6});
  }
}

TEST(RecomputePlanner, BeforeItIsBackTheValueIsMadeAgain) {
  ProblemBuilder b;
  uint32_t x = b.forward({}, 640, 100);
  uint32_t n = b.forward({x}, 640, 1);
  uint32_t y = b.forward({n}, 64, 1);
  uint32_t d = b.backward({y}, 6400);
  d = b.backward({d}, 64);
  d = b.backward({d, n}, 64);
  uint32_t back = b.fetch(x);
  b.backward({d, back}, 64);
  RecomputePlan plan = planRecompute(b.problem, 6464);
  EXPECT_EQ(plan.peakBytes, 6464u);
  EXPECT_EQ(plan.before[0], Ops{5});
  EXPECT_EQ(plan.before[1], Ops{5});
}

TEST(RecomputePlanner, PeakIsWhatAPlainCountSays) {
  std::mt19937 random(3);
  for (int round = 0; round < 600; ++round) {
    RecomputeProblem problem = randomProblem(random, 1 + random() % 14, false,
                                             /*fetches=*/round % 2);
    RecomputePlan all = planWithoutRecompute(problem);
    EXPECT_EQ(all.peakBytes, plainPeak(problem, all));
    RecomputePlan plan = planRecompute(problem, all.peakBytes * 2 / 3);
    EXPECT_EQ(plan.peakBytes, plainPeak(problem, plan));
    EXPECT_LE(plan.peakBytes, all.peakBytes);
    expectOrdered(problem, plan);
    for (const RecomputePlan &fixed :
         {planBlocks(problem, 0), planSegments(problem, 2, true),
          planSegments(problem, 3, true), planRecompute(problem, 1)}) {
      EXPECT_EQ(fixed.peakBytes, plainPeak(problem, fixed));
      expectOrdered(problem, fixed);
    }
  }
}

TEST(RecomputePlanner, CloseToTheBestOfAllChoices) {
  std::mt19937 random(5);
  int feasible = 0, found = 0;
  double ours = 0, best = 0;
  for (int round = 0; round < 200; ++round) {
    RecomputeProblem problem = randomProblem(random, 10, true);
    uint64_t budget = planWithoutRecompute(problem).peakBytes * 4 / 5;
    RecomputeLayout layout(problem);
    double least = -1;
    for (uint32_t choice = 0; choice < 1u << 10; ++choice) {
      RecomputeLayout::Choice keep(problem.ops.size(), Recompute::Once);
      for (uint32_t i = 0; i < 10; ++i)
        if (choice >> i & 1)
          keep[i] = Recompute::Never;
      layout.evaluate(keep);
      if (layout.peakBytes() <= budget &&
          (least < 0 || layout.seconds() < least))
        least = layout.seconds();
    }
    if (least < 0)
      continue;
    ++feasible;
    RecomputePlan plan = planRecompute(problem, budget);
    if (plan.peakBytes > budget)
      continue;
    ++found;
    ours += plan.seconds;
    best += least;
  }
  EXPECT_EQ(found, feasible);
  EXPECT_LE(ours, best * 1.02);
  RecordProperty("found", found);
  RecordProperty("feasible", feasible);
  RecordProperty("seconds_over_best", std::to_string(ours / best));
}

TEST(RecomputePlanner, NeverSlowerThanWholeBlocksAtTheirPeak) {
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    RecomputeProblem problem = randomProblem(random, 24, true);
    RecomputePlan blocks = planSegments(problem, 1);
    RecomputePlan plan = planRecompute(problem, blocks.peakBytes);
    EXPECT_LE(plan.peakBytes, blocks.peakBytes);
    EXPECT_LE(plan.seconds, blocks.seconds);
  }
}

TEST(RecomputePlanner, CheapOpsFirstOnALayeredModel) {
  RecomputeProblem problem = layered(16, 64000);
  RecomputePlan all = planWithoutRecompute(problem);
  // Per layer, norm and activation take 5 of the 10 saved units. Recomputing
  // these, but no linear, can therefore lower the peak by a quarter.
  RecomputePlan plan = planRecompute(problem, all.peakBytes * 3 / 4);
  EXPECT_LE(plan.peakBytes, all.peakBytes * 3 / 4);
  EXPECT_LT(plan.seconds, 1e-3);
}

TEST(RecomputePlanner, ASegmentTwiceHoldsOneInside) {
  // 6 blocks, with values x0 to x6 of U = 64 bytes between them. Segments of 3
  // blocks save x0, x3 and x6. Only the head reads x6.
  RecomputeProblem problem = layered(6, 64);
  RecomputePlan nested = planSegments(problem, 3, true);
  EXPECT_EQ(nested.peakBytes, plainPeak(problem, nested));
  // Op 0 computes x0. Ops 5 b + 1 to 5 b + 5 are block b, and the last of them
  // computes x(b + 1). The gradients of block b begin at 33 + 4 (5 - b).
  EXPECT_TRUE(nested.before[15].empty());
  EXPECT_EQ(nested.before[20], Ops{33});
  EXPECT_EQ(nested.before[25], Ops{33});
  // The norm of block 4 is recomputed for x5, and again for the block's
  // gradients.
  EXPECT_EQ(nested.before[21], (Ops{33, 37}));
  EXPECT_EQ(nested.before[26], Ops{33}); // block 5: only for its gradients
  // x0, x3, d and the recomputed x4 and x5 take 5 units; norm, up, act and dact
  // take 1 + 4 + 4 + 4 units.
  EXPECT_EQ(nested.peakBytes, (5u + 13) * 64);
  // With one level, the values of all three blocks are alive at once.
  EXPECT_GT(planSegments(problem, 3).peakBytes, nested.peakBytes);
}

TEST(RecomputePlanner, TwiceOnlyWhereOnceIsNotEnough) {
  RecomputeProblem problem = layered(36, 64000);
  uint64_t once = planRecompute(problem, 1).peakBytes;
  uint64_t least = UINT64_MAX;
  for (int64_t blocks : {1, 2, 3, 4, 6, 8})
    least = std::min(least, planSegments(problem, blocks).peakBytes);
  EXPECT_LT(once, least * 3 / 5);
  auto most = [](const RecomputePlan &plan) {
    size_t times = 0;
    for (const std::vector<uint32_t> &before : plan.before)
      times = std::max(times, before.size());
    return times;
  };
  RecomputePlan roomy = planRecompute(problem, least);
  EXPECT_LE(roomy.peakBytes, least);
  EXPECT_EQ(most(roomy), 1u);
  RecomputePlan tight = planRecompute(problem, least * 3 / 5);
  EXPECT_LE(tight.peakBytes, least * 3 / 5);
  EXPECT_EQ(most(tight), 2u);
  EXPECT_EQ(tight.peakBytes, plainPeak(problem, tight));
}

TEST(RecomputePlanner, ManyLayersQuickly) {
  RecomputeProblem problem = layered(400, 4096);
  uint64_t peak = planWithoutRecompute(problem).peakBytes;
  auto start = std::chrono::steady_clock::now();
  RecomputePlan plan = planRecompute(problem, peak / 8);
  std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  RecordProperty("seconds", std::to_string(seconds.count()));
  EXPECT_LE(plan.peakBytes, peak / 8);
  EXPECT_LT(seconds.count(), 5.0);
}

} // namespace
