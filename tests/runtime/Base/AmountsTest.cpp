// SPDX-License-Identifier: MIT

// Amounts as people read them, at the edges of their units.

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
