// SPDX-License-Identifier: MIT

// Collectives of ranks (threads here) by messages and through shared memory:
// exact results of every kind, and errors after a rank has ended.

#include "runtime/Ranks/RingCollectives.h"

#include <gtest/gtest.h>

#include <cstring>
#include <latch>
#include <numeric>

#include "tests/runtime/Ranks/ThreadedRanks.h"

using namespace qlora;
using namespace std::chrono_literals;

/// How ranks exchange the data of reductions.
enum class Way { kMessages, kSharedWindow };

class RingCollectivesTest : public testing::TestWithParam<Way> {
protected:
  static void runGroup(int size,
                       const std::function<void(Collectives &, int)> &body,
                       std::chrono::milliseconds timeout = 20s) {
    FileDescriptor memory;
    if (GetParam() == Way::kSharedWindow)
      memory = SharedWindow::create(size).value();
    runRanks(
        size,
        [&](RingCollectives &group) {
          if (memory.isOpen())
            group.useWindow(
                SharedWindow::map(memory, group.rank(), size).value());
          body(group, group.rank());
        },
        timeout);
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, RingCollectivesTest,
                         testing::Values(Way::kMessages, Way::kSharedWindow),
                         [](const auto &way) {
                           return way.param == Way::kMessages ? "Messages"
                                                              : "SharedWindow";
                         });

template <typename T> static std::span<uint8_t> bytesOf(std::vector<T> &data) {
  return {reinterpret_cast<uint8_t *>(data.data()), data.size() * sizeof(T)};
}

template <typename T>
static Status run(Collectives &group, qlora_collective kind, qlora_dtype dtype,
                  std::vector<T> &to, std::vector<T> from = {}, int peer = 0) {
  return group.run({kind, dtype, peer, bytesOf(to), bytesOf(from)});
}

static Status sum(Collectives &group, std::vector<float> &data) {
  return run(group, QLORA_COLLECTIVE_ALL_REDUCE, QLORA_DTYPE_F32, data);
}

static std::vector<float> dataOf(int rank, size_t count) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i)
    data[i] = 1.0f / static_cast<float>(1 + (i * 7 + rank * 13) % 101);
  return data;
}

/// Returns values that identify the rank and the element.
static std::vector<int32_t> numbersOf(int rank, size_t count) {
  std::vector<int32_t> data(count);
  std::iota(data.begin(), data.end(), 1000000 * (rank + 1));
  return data;
}

TEST_P(RingCollectivesTest, SumsAreInTheOrderOfRanksForEverySize) {
  for (int ranks : {2, 3, 5})
    for (size_t count : {1u, 2u, 1000u, 65537u, 1234567u}) {
      std::vector<float> expected = dataOf(0, count);
      for (int rank = 1; rank < ranks; ++rank) {
        const std::vector<float> more = dataOf(rank, count);
        for (size_t i = 0; i < count; ++i)
          expected[i] += more[i];
      }
      runGroup(ranks, [&](Collectives &group, int rank) {
        std::vector<float> data = dataOf(rank, count);
        const Status status = sum(group, data);
        ASSERT_TRUE(status.isOk()) << status.message();
        EXPECT_EQ(std::memcmp(data.data(), expected.data(), 4 * count), 0)
            << ranks << " ranks, " << count;
      });
    }
}

TEST_P(RingCollectivesTest, SumsOfNarrowNumbersAreRoundedInEachStep) {
  // 256 + 1 + 1 in bf16, which has 8 bits of precision: 256 + 1 rounds to 256.
  const uint16_t addends[] = {0x4380, 0x3f80, 0x3f80};
  runGroup(3, [&](Collectives &group, int rank) {
    std::vector<uint16_t> data(77777, addends[rank]);
    ASSERT_TRUE(
        run(group, QLORA_COLLECTIVE_ALL_REDUCE, QLORA_DTYPE_BF16, data).isOk());
    EXPECT_EQ(data, std::vector<uint16_t>(77777, 0x4380));
    std::vector<int32_t> wide(3, int32_t(1) << 30);
    ASSERT_TRUE(
        run(group, QLORA_COLLECTIVE_ALL_REDUCE, QLORA_DTYPE_I32, wide).isOk());
    EXPECT_EQ(wide[2], int32_t(uint32_t(3) << 30));
  });
}

TEST_P(RingCollectivesTest, EveryKindMovesItsPieces) {
  for (int ranks : {1, 2, 3, 4})
    for (size_t piece : {1u, 7u, 70001u, 600001u}) {
      const auto check = [&](Collectives &group, int rank) {
        const size_t whole = piece * ranks;
        std::vector<int32_t> to(whole), own(piece);
        ASSERT_TRUE(run(group, QLORA_COLLECTIVE_ALL_GATHER, QLORA_DTYPE_I32, to,
                        numbersOf(rank, piece))
                        .isOk());
        for (size_t i = 0; i < whole; ++i)
          ASSERT_EQ(to[i], 1000000 * int(i / piece + 1) + int(i % piece));
        ASSERT_TRUE(run(group, QLORA_COLLECTIVE_REDUCE_SCATTER, QLORA_DTYPE_I32,
                        own, numbersOf(rank, whole))
                        .isOk());
        for (size_t i = 0; i < piece; ++i)
          ASSERT_EQ(own[i], 500000 * ranks * (ranks + 1) +
                                ranks * int(rank * piece + i));
        ASSERT_TRUE(run(group, QLORA_COLLECTIVE_ALL_TO_ALL, QLORA_DTYPE_I32, to,
                        numbersOf(rank, whole))
                        .isOk());
        for (size_t i = 0; i < whole; ++i)
          ASSERT_EQ(to[i], 1000000 * int(i / piece + 1) +
                               int(rank * piece + i % piece));
        for (int root = 0; root < ranks; ++root) {
          std::vector<int32_t> data = numbersOf(rank, whole);
          ASSERT_TRUE(run(group, QLORA_COLLECTIVE_BROADCAST, QLORA_DTYPE_I32,
                          data, {}, root)
                          .isOk());
          ASSERT_EQ(data, numbersOf(root, whole));
        }
      };
      if (ranks > 1) {
        runGroup(ranks, check);
        continue;
      }
      SingleRank alone;
      check(alone, 0);
    }
}

/// Neighbours send in both directions. In a ring of two, both neighbours are
/// the same rank.
TEST_P(RingCollectivesTest, NeighboursSendBothWays) {
  for (int ranks : {2, 3})
    runGroup(ranks, [ranks](Collectives &group, int rank) {
      for (int places : {1, -1}) {
        std::vector<int32_t> none, from = numbersOf(rank, 300001), to(300001);
        const auto send = [&](bool isTurn) {
          return !isTurn || run(group, QLORA_COLLECTIVE_SEND, QLORA_DTYPE_I32,
                                none, from, places)
                                .isOk();
        };
        ASSERT_TRUE(send(rank > 0)); // one rank receives first
        ASSERT_TRUE(run(group, QLORA_COLLECTIVE_RECV, QLORA_DTYPE_I32, to, {},
                        -places)
                        .isOk());
        ASSERT_TRUE(send(rank == 0));
        EXPECT_EQ(to, numbersOf((rank - places + ranks) % ranks, 300001));
      }
    });
}

TEST_P(RingCollectivesTest, NobodySendsFurther) {
  runGroup(3, [](Collectives &group, int) {
    std::vector<int32_t> to(1);
    EXPECT_EQ(run(group, QLORA_COLLECTIVE_RECV, QLORA_DTYPE_I32, to, {}, 2)
                  .message(),
              "a recv at a distance of 2 ranks needs GPUs: CPU ranks reach "
              "only their neighbours");
    EXPECT_TRUE(group.barrier().isOk());
  });
}

TEST_P(RingCollectivesTest, TextsOfAnyLengthGoToAll) {
  runGroup(4, [](Collectives &group, int rank) {
    for (size_t unit : {0u, 3u, 19u, 56u, 57u, 100000u}) {
      auto all = group.allGather(std::string(unit * rank, char('a' + rank)));
      ASSERT_TRUE(all.isOk()) << all.status().message();
      for (int other = 0; other < 4; ++other)
        EXPECT_EQ((*all)[other], std::string(unit * other, char('a' + other)));
    }
    EXPECT_TRUE(group.barrier().isOk());
  });
}

TEST_P(RingCollectivesTest, ManyRanksMeetAndAddUp) {
  const auto start = std::chrono::steady_clock::now();
  runGroup(64, [](Collectives &group, int rank) {
    std::vector<float> data(100001, 1);
    ASSERT_TRUE(sum(group, data).isOk());
    EXPECT_EQ(data, std::vector<float>(100001, 64));
    auto all = group.allGather(std::to_string(rank));
    ASSERT_TRUE(all.isOk());
    EXPECT_EQ((*all)[63], "63");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

TEST_P(RingCollectivesTest, BarrierAndEmptySums) {
  runGroup(2, [](Collectives &group, int rank) {
    EXPECT_EQ(group.rank(), rank);
    EXPECT_EQ(group.size(), 2);
    std::vector<float> none;
    EXPECT_TRUE(sum(group, none).isOk());
    EXPECT_TRUE(group.barrier().isOk());
  });
}

TEST_P(RingCollectivesTest, ALostRankEndsTheOthers) {
  auto start = std::chrono::steady_clock::now();
  // No rank may still be in the barrier, where it would notice the loss.
  std::latch met(5);
  runGroup(5, [&](Collectives &group, int rank) {
    EXPECT_TRUE(group.barrier().isOk());
    met.arrive_and_wait();
    if (rank == 1)
      return; // its connections close
    std::vector<float> data(1000);
    EXPECT_EQ(sum(group, data).code(), StatusCode::kAborted);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

TEST_P(RingCollectivesTest, NoticesALostRankBetweenCalls) {
  std::latch met(3);
  runGroup(3, [&](Collectives &group, int rank) {
    EXPECT_TRUE(group.barrier().isOk());
    EXPECT_TRUE(group.checkOthers().isOk());
    EXPECT_EQ(group.timeout(), 20s);
    EXPECT_TRUE(group.barrier().isOk());
    met.arrive_and_wait();
    if (rank == 1)
      return; // its connections close
    auto start = std::chrono::steady_clock::now();
    while (group.checkOthers().isOk() &&
           std::chrono::steady_clock::now() - start < 5s)
      std::this_thread::sleep_for(1ms);
    EXPECT_EQ(group.checkOthers().code(), StatusCode::kAborted);
    std::this_thread::sleep_for(200ms); // the second rank also notices it
  });
}

TEST_P(RingCollectivesTest, WaitsNoLongerThanItsTimeout) {
  const auto start = std::chrono::steady_clock::now();
  std::latch hasEnded(1); // rank 1 lives until then
  runGroup(
      2,
      [&](Collectives &group, int rank) {
        EXPECT_TRUE(group.barrier().isOk());
        if (rank == 1)
          return hasEnded.wait();
        const Status status = group.barrier();
        hasEnded.count_down();
        EXPECT_EQ(status.code(), StatusCode::kAborted);
        EXPECT_TRUE(status.message().starts_with(
            "rank 1 has sent nothing for 0.2 s: it is at its collective "))
            << status.message();
      },
      200ms);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

TEST_P(RingCollectivesTest, RanksThatMakeOtherCallsAreTold) {
  runGroup(2, [](Collectives &group, int rank) {
    std::vector<int32_t> data(rank == 0 ? 10 : 11);
    const Status status =
        run(group, QLORA_COLLECTIVE_BROADCAST, QLORA_DTYPE_I32, data);
    if (rank == 1) {
      EXPECT_NE(status.message().find("rank 0 is at another collective"),
                std::string::npos)
          << status.message();
    }
  });
}

/// A rank that notices an error stays alive, but closes its connections, so
/// that all other ranks notice the error too.
TEST_P(RingCollectivesTest, ALossIsPassedOn) {
  std::latch haveEnded(3); // all live until then
  runGroup(4, [&](Collectives &group, int rank) {
    if (rank == 3)
      return haveEnded.wait();
    const auto start = std::chrono::steady_clock::now();
    std::vector<int32_t> data(rank == 0 ? 10 : 11);
    const Status status =
        run(group, QLORA_COLLECTIVE_BROADCAST, QLORA_DTYPE_I32, data);
    if (rank > 0) { // rank 0 has sent all its data
      EXPECT_EQ(status.code(), StatusCode::kAborted) << rank;
      EXPECT_NE(status.message().find("at another collective"),
                std::string::npos)
          << status.message();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, 1500ms) << rank;
    haveEnded.arrive_and_wait();
  });
}

TEST_P(RingCollectivesTest, AbortWakesABlockedRank) {
  auto start = std::chrono::steady_clock::now();
  std::latch hasEnded(1); // rank 1 lives until then
  runGroup(2, [&](Collectives &group, int rank) {
    EXPECT_TRUE(group.barrier().isOk());
    if (rank == 1)
      return hasEnded.wait();
    std::thread other([&] {
      std::this_thread::sleep_for(100ms);
      group.abort();
    });
    std::vector<float> x(1);
    EXPECT_EQ(sum(group, x).code(), StatusCode::kAborted);
    hasEnded.count_down();
    other.join();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}
