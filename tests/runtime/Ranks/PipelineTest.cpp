// SPDX-License-Identifier: MIT

// Pipeline stages as groups of a job: sends between stages, and frozen weights
// that the ranks of one stage share.

#include "runtime/Ranks/RankGroup.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/runtime/Ranks/ThreadedRanks.h"

using namespace qlora;

/// Returns bytes that identify a rank.
static std::vector<uint8_t> bytesOfRank(int number, size_t count) {
  std::vector<uint8_t> bytes(count);
  std::iota(bytes.begin(), bytes.end(), static_cast<uint8_t>(50 * number + 1));
  return bytes;
}

/// Stages send messages of odd sizes that exceed a connection's buffer: first
/// all forward, then all backward. Afterwards collectives of all ranks still
/// work, although stages have made different numbers of sends.
TEST(Pipeline, StagesSendAndReceive) {
  for (const auto &[size, stages] : {std::pair(4, 2), {4, 4}, {8, 4}})
    runJob(size, GroupSizes({.pp = uint32_t(stages)}), [](RankGroup &group) {
      Collectives &pipeline = group.collectives(QLORA_GROUP_PP);
      const int stage = pipeline.rank(), last = pipeline.size() - 1;
      const int column = group.rank() % (group.size() / pipeline.size());
      const auto send = [&](int peer, std::vector<uint8_t> bytes) {
        ASSERT_TRUE(
            pipeline
                .run({QLORA_COLLECTIVE_SEND, QLORA_DTYPE_U8, peer, {}, bytes})
                .isOk());
      };
      const auto expect = [&](int peer, int number, size_t size) {
        std::vector<uint8_t> bytes(size);
        ASSERT_TRUE(
            pipeline
                .run({QLORA_COLLECTIVE_RECV, QLORA_DTYPE_U8, peer, bytes, {}})
                .isOk());
        EXPECT_EQ(bytes, bytesOfRank(number, size)) << group.rank();
      };
      for (const size_t bytes : {size_t{1}, size_t{3000001}, size_t{777}}) {
        if (stage > 0)
          expect(-1, 10 * column + stage - 1, bytes);
        if (stage < last) {
          send(1, bytesOfRank(10 * column + stage, bytes));
          expect(1, 10 * column + stage + 1, bytes + 5);
        }
        if (stage > 0)
          send(-1, bytesOfRank(10 * column + stage, bytes + 5));
      }
      for (Collectives *each : {&pipeline, &group.collectives()}) {
        auto told = each->allGather(std::to_string(group.rank()));
        ASSERT_TRUE(told.isOk()) << told.status().message();
        EXPECT_EQ((*told)[static_cast<size_t>(each->rank())],
                  std::to_string(group.rank()));
      }
    });
}

/// On one machine, the ranks of each stage share their frozen weights.
TEST(Pipeline, StagesShareABaseEach) {
  runJob(4, GroupSizes({.pp = 2}), [](RankGroup &group) {
    FillShare share;
    const uint64_t bytes = group.rank() < 2 ? 4096 : 8192;
    auto arena = group.shareFrozenArena(
        bytes, [] { return FileDescriptor(); }, share);
    ASSERT_TRUE(arena.isOk()) << arena.status().message();
    EXPECT_EQ(share.size, 2u);
    EXPECT_EQ(share.rank, group.rank() % 2u);
    arena->bytes()[share.rank] = uint8_t(10 * group.rank() + 1);
    ASSERT_TRUE(group.collectives().barrier().isOk());
    const int first = group.rank() / 2 * 2;
    EXPECT_EQ(arena->bytes()[0], 10 * first + 1);
    EXPECT_EQ(arena->bytes()[1], 10 * (first + 1) + 1);
    ASSERT_TRUE(group.collectives().barrier().isOk());
  });
}
