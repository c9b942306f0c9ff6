// SPDX-License-Identifier: MIT

// Each micro-batch is assigned once: in turn to equally fast ranks, otherwise
// in proportion to speed.

#include "runtime/Data/MicroBatchAssignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

using namespace qlora;

using Numbers = std::vector<int64_t>;

static Numbers numbersOf(const MicroBatchAssignment &deal, int64_t rank) {
  Numbers numbers;
  for (int64_t k = 0; k < deal.size(rank); ++k)
    numbers.push_back(deal.number(rank, k));
  return numbers;
}

TEST(MicroBatchAssignment, EqualRanksTakeTurns) {
  const MicroBatchAssignment deal(6, 2, {});
  EXPECT_EQ(numbersOf(deal, 0), (Numbers{0, 2, 4}));
  EXPECT_EQ(numbersOf(deal, 1), (Numbers{1, 3, 5}));
  const std::vector<double> same = {2, 2};
  EXPECT_EQ(numbersOf(MicroBatchAssignment(6, 2, same), 1), (Numbers{1, 3, 5}));
}

TEST(MicroBatchAssignment, WhoIsDoneFirstGetsTheNextOne) {
  const std::vector<double> speeds = {3, 1};
  const MicroBatchAssignment deal(8, 2, speeds);
  EXPECT_EQ(numbersOf(deal, 0), (Numbers{0, 2, 3, 4, 5, 6}));
  EXPECT_EQ(numbersOf(deal, 1), (Numbers{1, 7}));
}

TEST(MicroBatchAssignment, EveryRankHasOne) {
  const std::vector<double> speeds = {1, 1000, 1};
  const MicroBatchAssignment deal(6, 3, speeds);
  EXPECT_EQ(deal.size(0), 1);
  EXPECT_EQ(deal.size(1), 4);
  EXPECT_EQ(deal.size(2), 1);
}

TEST(MicroBatchAssignment, EachMicroBatchIsSomebodysAndNoneEndsMuchLater) {
  const std::vector<double> speeds = {1, 2.5, 0.7, 4};
  for (int64_t each = 1; each <= 50; ++each) {
    const MicroBatchAssignment deal(each * 4, 4, speeds);
    Numbers all;
    double longest = 0;
    for (int64_t rank = 0; rank < 4; ++rank) {
      const Numbers own = numbersOf(deal, rank);
      EXPECT_TRUE(std::is_sorted(own.begin(), own.end()));
      all.insert(all.end(), own.begin(), own.end());
      longest = std::max(longest, double(own.size()) / speeds[size_t(rank)]);
    }
    std::sort(all.begin(), all.end());
    for (int64_t i = 0; i < each * 4; ++i)
      EXPECT_EQ(all[size_t(i)], i);
    EXPECT_EQ(std::ssize(all), each * 4);
    // Together the ranks compute 8.2 micro-batches per unit of time. The
    // slowest rank may get one more than its share.
    EXPECT_LE(longest, double(each * 4) / 8.2 + 1 / 0.7);
  }
}
