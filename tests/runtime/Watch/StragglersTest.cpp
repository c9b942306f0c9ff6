// SPDX-License-Identifier: MIT

// Tests which rank is reported as slow, when, and how often.

#include <gtest/gtest.h>

#include <array>

#include "runtime/Watch/Stragglers.h"

using namespace qlora;

namespace {
struct StragglersTest : testing::Test {
  Stragglers stragglers{{"a", "a", "b", "b"}, 10, true};

  std::string check(double last, double second = 0.1) {
    return stragglers.check(std::array{0.1, second, 0.11, last});
  }
};
} // namespace

TEST_F(StragglersTest, NamesARankThatStaysSlower) {
  EXPECT_EQ(check(0.14), "");
  EXPECT_EQ(check(0.15), "");
  EXPECT_EQ(
      check(0.14),
      "rank 3 (b) has been 1.4 x slower than the median rank for 30 steps: its "
      "work takes 140 ms per step, the median 100 ms, and all ranks wait for "
      "it. Fix: check what else runs there, or give it fewer micro-batches "
      "with --rank-speeds");
  EXPECT_EQ(check(0.14), "");
}

TEST_F(StragglersTest, NeedsThreeLinesInARowOfOneRank) {
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(check(0.14), "");
    EXPECT_EQ(check(0.14), "");
    EXPECT_EQ(check(0.119), "") << "within 20 %";
    EXPECT_EQ(check(0.14), "");
    EXPECT_EQ(check(0.1, 0.14), "") << "another one";
  }
}

TEST_F(StragglersTest, NamesTheNextOneToo) {
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(check(0.2).empty(), i < 2);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(check(0.2, 0.3).starts_with("rank 1 (a) has been 2.7 x"), i == 2);
}

TEST(Stragglers, LeavesMillisecondsAlone) {
  Stragglers stragglers({"a", "b"}, 1, false);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(stragglers.check(std::array{0.012, 0.003}), "");
}

TEST(Stragglers, NamesOneOfTwo) {
  Stragglers stragglers({"a", "b"}, 1, false);
  std::string said;
  for (int i = 0; i < 3; ++i)
    said = stragglers.check(std::array{0.3, 0.2});
  EXPECT_TRUE(said.starts_with("rank 0 (a) has been 1.5 x")) << said;
}
