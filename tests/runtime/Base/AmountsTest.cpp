// SPDX-License-Identifier: MIT

// Sizes, times and counts as readable text, around each change of unit.

#include "runtime/Base/Amounts.h"

#include <gtest/gtest.h>

using namespace qlora;

namespace {

TEST(AmountsTest, GroupsDigits) {
  EXPECT_EQ(formatCount(0), "0");
  EXPECT_EQ(formatCount(999), "999");
  EXPECT_EQ(formatCount(1000), "1,000");
  EXPECT_EQ(formatCount(12345678), "12,345,678");
}

TEST(AmountsTest, RoundsParameters) {
  EXPECT_EQ(formatParameters(89088), "89,088");
  EXPECT_EQ(formatParameters(999499), "999,499");
  EXPECT_EQ(formatParameters(999500), "1.0 M");
  EXPECT_EQ(formatParameters(596049920), "596.0 M");
  EXPECT_EQ(formatParameters(999950000), "1.0 B");
  EXPECT_EQ(formatParameters(8030261248), "8.0 B");
}

TEST(AmountsTest, ChoosesTheUnitOfBytes) {
  EXPECT_EQ(formatBytes(512), "512 B");
  EXPECT_EQ(formatBytes(uint64_t{38} << 20), "38.0 MiB");
  EXPECT_EQ(formatBytes(uint64_t{200} << 30), "200 GiB");
}

} // namespace

TEST(Amounts, OfARun) {
  EXPECT_EQ(formatBytes(512), "512 B");
  EXPECT_EQ(formatBytes(1536), "1.5 KiB");
  EXPECT_EQ(formatBytes(19541919334), "18.2 GiB");
  EXPECT_EQ(formatBytes(200ull << 20), "200 MiB");
  EXPECT_EQ(formatDuration(730), "0:12:10");
  EXPECT_EQ(formatDuration(-1), "0:00:00");
  EXPECT_EQ(formatRate(812.4), "812");
  EXPECT_EQ(formatRate(40300), "40.3k");
  EXPECT_EQ(formatShort(1.9e-4), "1.9e-4");
  EXPECT_EQ(formatShort(0.0099999), "1e-2");
  EXPECT_EQ(formatShort(0.87), "0.87");
  EXPECT_EQ(formatShort(5621.3), "5621");
  EXPECT_EQ(formatShort(0), "0");
  EXPECT_EQ(formatShort(-2.5e5), "-2.5e5");
}
