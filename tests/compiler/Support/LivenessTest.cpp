// SPDX-License-Identifier: MIT

// computeLiveness: straight lines, views, and random ones against a plain
// search.

#include "compiler/Support/Liveness.h"

#include <random>

#include <gtest/gtest.h>

using namespace qlora;

namespace {

constexpr BufferAccess kRead = BufferAccess::Read;
constexpr BufferAccess kWrite = BufferAccess::Write;
constexpr BufferAccess kReadWrite = BufferAccess::ReadWrite;
using Commands = std::vector<std::vector<BufferUse>>;

TEST(Liveness, FirstAndLast) {
  Commands commands = {{{0, kWrite}}, {{0, kRead}, {1, kWrite}}, {{1, kRead}}};
  std::vector<uint32_t> views(3, kNotAView);
  std::vector<BufferLife> lives = computeLiveness(commands, views);
  EXPECT_EQ(lives[0].first, 0);
  EXPECT_EQ(lives[0].last, 1);
  EXPECT_EQ(lives[1].first, 1);
  EXPECT_EQ(lives[1].last, 2);
  EXPECT_FALSE(lives[2].isUsed());
  EXPECT_EQ(lives[0].readBeforeWrite, -1);
}

TEST(Liveness, ReadBeforeWrite) {
  Commands commands = {{}, {{0, kReadWrite}}, {{0, kRead}}, {{1, kWrite}}};
  std::vector<uint32_t> views(2, kNotAView);
  std::vector<BufferLife> lives = computeLiveness(commands, views);
  EXPECT_EQ(lives[0].readBeforeWrite, 1);
  EXPECT_EQ(lives[1].readBeforeWrite, -1);
}

TEST(Liveness, ViewsShareOneLife) {
  // 1 and 2 are parts of 0, 3 is a part of 2.
  Commands commands = {{{1, kWrite}}, {{3, kWrite}}, {}, {{0, kRead}},
                       {{2, kRead}}};
  std::vector<uint32_t> views = {kNotAView, 0, 0, 2};
  std::vector<BufferLife> lives = computeLiveness(commands, views);
  for (const BufferLife &life : lives) {
    EXPECT_EQ(life.first, 0);
    EXPECT_EQ(life.last, 4);
    EXPECT_EQ(life.readBeforeWrite, -1);
  }
}

TEST(Liveness, LivesWhereTheQueuesLetIt) {
  // Commands 0, 2 and 4 run one after the other; 1 beside 0 to 2.
  Commands commands = {{{0, kWrite}},
                       {{1, kWrite}},
                       {{0, kRead}, {2, kWrite}},
                       {},
                       {{1, kRead}, {2, kRead}}};
  std::vector<uint32_t> views(3, kNotAView);
  std::vector<CommandSpan> spans = {{0, 0}, {0, 3}, {2, 2}, {3, 3}, {4, 4}};
  std::vector<BufferLife> lives = computeLiveness(commands, views, spans);
  EXPECT_EQ(lives[0].first, 0);
  EXPECT_EQ(lives[0].last, 2);
  EXPECT_EQ(lives[1].first, 0);
  EXPECT_EQ(lives[1].last, 4);
  EXPECT_EQ(lives[2].first, 2);
  EXPECT_EQ(lives[2].last, 4);
}

TEST(Liveness, RandomAgainstSearch) {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    uint32_t buffers = 1 + random() % 12;
    std::vector<uint32_t> views(buffers, kNotAView), sources(buffers);
    for (uint32_t b = 0; b < buffers; ++b) {
      if (b && random() % 2)
        views[b] = random() % b;
      sources[b] = views[b] == kNotAView ? b : sources[views[b]];
    }
    Commands commands(random() % 20);
    for (auto &uses : commands)
      for (int n = random() % 3; n > 0; --n)
        uses.push_back({uint32_t(random() % buffers), BufferAccess(
                                                          1 + random() % 3)});
    std::vector<BufferLife> lives = computeLiveness(commands, views);
    for (uint32_t b = 0; b < buffers; ++b) {
      int64_t first = -1, last = -1;
      for (size_t c = 0; c < commands.size(); ++c)
        for (BufferUse use : commands[c])
          if (sources[use.buffer] == sources[b]) {
            first = first < 0 ? int64_t(c) : first;
            last = c;
          }
      EXPECT_EQ(lives[b].first, first);
      EXPECT_EQ(lives[b].last, last);
    }
  }
}

} // namespace
