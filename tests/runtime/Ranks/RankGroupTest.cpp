// SPDX-License-Identifier: MIT

// The groups of a job (ranks are threads here): their members, the separate
// data of each group, and a lost rank, which ends all groups.

#include "runtime/Ranks/RankGroup.h"

#include <gtest/gtest.h>

#include <sys/socket.h>

#include <atomic>
#include <latch>
#include <numeric>
#include <thread>

#include "runtime/Ranks/Heartbeat.h"
#include "runtime/Ranks/Socket.h"
#include "tests/runtime/Ranks/ThreadedRanks.h"

using namespace qlora;
using namespace std::chrono_literals;

/// Returns bytes that identify a rank of the job.
static std::vector<uint8_t> pieceOf(int rank, size_t bytes) {
  std::vector<uint8_t> piece(bytes);
  std::iota(piece.begin(), piece.end(), static_cast<uint8_t>(50 * rank + 1));
  return piece;
}

TEST(RankGroup, AllHoldABaseTogetherOrNobodyDoes) {
  runJob(3, 3, [](RankGroup &group) {
    EXPECT_EQ(&group.collectives(QLORA_GROUP_FSDP), &group.collectives());
  });
  runJob(3, 1, [](RankGroup &group) {
    EXPECT_EQ(group.collectives().size(), 3);
    EXPECT_EQ(group.collectives(QLORA_GROUP_FSDP).size(), 1);
  });
  runJob(1, 1, [](RankGroup &group) {
    EXPECT_EQ(group.groups()[QLORA_GROUP_FSDP]->size(), 1);
  });
}

TEST(RankGroup, EveryGroupHasItsOwnPieces) {
  for (const auto &[size, shards] : {std::pair(4, 2), {6, 3}, {6, 2}})
    runJob(size, shards, [shards](RankGroup &group) {
      const int rank = group.rank(), first = rank / shards * shards;
      Collectives &own = group.collectives(QLORA_GROUP_FSDP);
      ASSERT_EQ(own.size(), shards);
      ASSERT_EQ(own.rank(), rank % shards);
      for (const size_t bytes : {1u, 3u, 1000003u, 1u << 20, (2u << 20) + 17}) {
        std::vector<uint8_t> to(bytes * shards), from = pieceOf(rank, bytes);
        ASSERT_TRUE(
            own.run({QLORA_COLLECTIVE_ALL_GATHER, QLORA_DTYPE_U8, 0, to, from})
                .isOk());
        for (int other = 0; other < shards; ++other)
          ASSERT_TRUE(
              std::ranges::equal(std::span(to).subspan(other * bytes, bytes),
                                 pieceOf(first + other, bytes)))
              << rank << " " << other << " " << bytes;
        // Alternate with all-reduces over all ranks.
        std::vector<float> sum(bytes % 1000 + 1, 1);
        ASSERT_TRUE(group.collectives()
                        .run({QLORA_COLLECTIVE_ALL_REDUCE,
                              QLORA_DTYPE_F32,
                              0,
                              {reinterpret_cast<uint8_t *>(sum.data()),
                               sum.size() * sizeof(float)},
                              {}})
                        .isOk());
        ASSERT_EQ(sum, std::vector<float>(sum.size(), float(group.size())));
      }
    });
}

static std::string textOf(std::vector<int> ranks) {
  return fmt::format("{}", fmt::join(ranks, " "));
}

static GroupSizes meshOf(uint32_t fsdp, uint32_t tp, uint32_t cp = 1,
                         uint32_t pp = 1, uint32_t ep = 1) {
  return GroupSizes({.fsdp = fsdp, .tp = tp, .pp = pp, .cp = cp, .ep = ep});
}

/// Members of every group that contains rank 5 of 8. In smaller jobs, tests the
/// groups of rank 1.
TEST(RankGroup, EveryAxisHasItsRanks) {
  struct Case {
    int size;
    GroupSizes mesh;
    /// Ranks in the groups DP, FSDP, TP, CP, PP, EP, REPLICAS, in this order.
    std::array<std::vector<int>, QLORA_GROUP_COUNT> groups;
  };
  const std::vector<int> one = {1}, two = {0, 1}, four = {0, 1, 2, 3};
  const std::vector<int> eight = {0, 1, 2, 3, 4, 5, 6, 7};
  const Case cases[] = {
      {1, meshOf(1, 1), {{{0}, {0}, {0}, {0}, {0}, {0}, {0}}}},
      {2, meshOf(1, 2), {{two, one, two, one, one, one, one}}},
      {4, meshOf(1, 1), {{four, one, one, one, one, one, one}}},
      {4, meshOf(1, 2), {{four, one, two, one, one, one, one}}},
      {4, meshOf(1, 4), {{four, one, four, one, one, one, one}}},
      {4, meshOf(2, 2), {{four, {1, 3}, two, one, one, one, one}}},
      {4, meshOf(2, 1), {{four, two, one, one, one, one, {1, 3}}}},
      {4, meshOf(4, 1), {{four, four, one, one, one, one, one}}},
      {4, meshOf(1, 1, 2), {{four, one, one, two, one, one, one}}},
      {4, meshOf(4, 1, 2), {{four, four, one, two, one, one, one}}},
      {4, meshOf(2, 1, 4), {{four, two, one, four, one, one, {1, 3}}}},
      {4, meshOf(1, 1, 1, 2), {{four, one, one, one, {1, 3}, one, one}}},
      {4, meshOf(1, 1, 1, 4), {{four, one, one, one, four, one, one}}},
      {4, meshOf(2, 1, 1, 2), {{four, two, one, one, {1, 3}, one, {1, 3}}}},
      {8,
       meshOf(4, 1, 2),
       {{eight, {4, 5, 6, 7}, {5}, {4, 5}, {5}, {5}, {1, 5}}}},
      {8, meshOf(2, 2), {{eight, {5, 7}, {4, 5}, {5}, {5}, {5}, {1, 5}}}},
      {8,
       meshOf(2, 1, 1, 2),
       {{eight, {4, 5}, {5}, {5}, {1, 5}, {5}, {1, 3, 5, 7}}}},
      {8,
       meshOf(2, 2, 2, 2),
       {{eight, {5, 7}, {4, 5}, {5, 7}, {1, 5}, {5}, {1, 5}}}},
      {8, meshOf(1, 1, 1, 4), {{eight, {5}, {5}, {5}, {1, 3, 5, 7}, {5}, {5}}}},
      {4, meshOf(1, 1, 1, 1, 2), {{four, one, one, one, one, two, one}}},
      {8,
       meshOf(2, 1, 1, 2, 4),
       {{eight, {4, 5}, {5}, {5}, {1, 5}, {4, 5, 6, 7}, {1, 3, 5, 7}}}}};
  for (const Case &expected : cases)
    runJob(expected.size, expected.mesh, [&](RankGroup &group) {
      const bool isAsked = group.rank() == (group.size() == 8   ? 5
                                            : group.size() == 1 ? 0
                                                                : 1);
      for (unsigned axis = 0; axis < QLORA_GROUP_COUNT; ++axis) {
        Collectives &own = *group.groups()[axis];
        ASSERT_EQ(&own, &group.collectives(static_cast<qlora_group>(axis)));
        ASSERT_EQ(group.number(static_cast<qlora_group>(axis)), own.rank());
        auto all = own.allGather(std::to_string(group.rank()));
        ASSERT_TRUE(all.isOk()) << all.status().message();
        EXPECT_EQ((*all)[static_cast<size_t>(own.rank())],
                  std::to_string(group.rank()));
        if (isAsked) {
          EXPECT_EQ(fmt::format("{}", fmt::join(*all, " ")),
                    textOf(expected.groups[axis]));
        }
        // All-reduces over this axis alternate with all-reduces over all ranks.
        std::vector<float> sum = {1};
        for (Collectives *each : {&own, &group.collectives()})
          ASSERT_TRUE(each->run({QLORA_COLLECTIVE_ALL_REDUCE,
                                 QLORA_DTYPE_F32,
                                 0,
                                 {reinterpret_cast<uint8_t *>(sum.data()),
                                  sizeof(float)},
                                 {}})
                          .isOk());
        EXPECT_EQ(sum[0], float(own.size()) * float(group.size()));
      }
    });
}

TEST(RankGroup, ThoseOfOneProductLineOrPipelineHaveTheSameRows) {
  runJob(6, GroupSizes({.tp = 3}), [](RankGroup &group) {
    EXPECT_EQ(group.dataRanks(), 2);
    EXPECT_EQ(group.dataRank(), group.rank() / 3);
    int64_t rows = group.countsRows() ? 10 + group.dataRank() : 0;
    ASSERT_TRUE(group.sum(std::span(&rows, 1)).isOk());
    EXPECT_EQ(rows, 21);
    EXPECT_EQ(group.countsSums(), group.countsRows());
  });
  runJob(6, GroupSizes({.cp = 3}), [](RankGroup &group) {
    EXPECT_EQ(group.dataRanks(), 2);
    EXPECT_EQ(group.dataRank(), group.rank() / 3);
    EXPECT_EQ(group.countsRows(), group.rank() % 3 == 0);
    EXPECT_TRUE(group.countsSums()); // each rank counts its own tokens
  });
  runJob(6, GroupSizes({.pp = 3}), [](RankGroup &group) {
    EXPECT_EQ(group.dataRanks(), 2);
    EXPECT_EQ(group.dataRank(), group.rank() % 2);
    EXPECT_EQ(group.countsRows(), group.rank() >= 4);
    EXPECT_EQ(group.countsSums(), group.rank() >= 4);
  });
  runJob(3, 3, [](RankGroup &group) {
    EXPECT_EQ(group.dataRanks(), 3);
    EXPECT_EQ(group.dataRank(), group.rank());
    EXPECT_TRUE(group.countsRows());
  });
}

/// Rank 7 is lost while the others wait in rings of three axes. Some of these
/// rings do not contain rank 7.
TEST(RankGroup, ALossInOneOfThreeRingsEndsAll) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> ended = 0;
  std::latch met(8);
  runJob(8, meshOf(2, 2), [&](RankGroup &group) {
    EXPECT_TRUE(group.collectives().barrier().isOk());
    met.arrive_and_wait();
    if (group.rank() == 7)
      return; // neighbour of 0 and 6 (dp), 5 (fsdp), 6 (tp)
    const qlora_group axes[] = {
        QLORA_GROUP_DP, QLORA_GROUP_DP,   QLORA_GROUP_FSDP, QLORA_GROUP_TP,
        QLORA_GROUP_TP, QLORA_GROUP_FSDP, QLORA_GROUP_TP};
    Status status;
    while (status.isOk() && std::chrono::steady_clock::now() - start < 5s)
      status = group.collectives(axes[group.rank()]).barrier();
    EXPECT_EQ(status.code(), StatusCode::kAborted) << group.rank();
    if (group.rank() == 5) {
      EXPECT_EQ(status.message(), "rank 7 has ended");
    }
    for (++ended; ended < 7 && std::chrono::steady_clock::now() - start < 10s;)
      std::this_thread::sleep_for(1ms);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

/// Rank 3 of 4 is lost. Rank 1 waits in one ring for a rank that notices the
/// loss in another ring. `axis` is FSDP or TP.
static void loseOneOfFour(const GroupSizes &mesh, qlora_group axis) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> ended = 0;
  // No rank may still be in the barrier, where it would notice the loss.
  std::latch met(4);
  runJob(4, mesh, [&](RankGroup &group) {
    EXPECT_TRUE(group.collectives().barrier().isOk());
    met.arrive_and_wait();
    if (group.rank() == 3)
      return; // its connections close
    // Rank 0 is a neighbour of rank 3 in the ring of all ranks.
    const bool isInWorld = group.rank() == 0;
    const Status status =
        group.collectives(isInWorld ? QLORA_GROUP_DP : axis).barrier();
    EXPECT_EQ(status.code(), StatusCode::kAborted) << group.rank();
    if (group.rank() == 2) {
      EXPECT_EQ(status.message(), "rank 3 has ended");
    }
    // The rank stays alive, so that its connections are not closed by its exit.
    for (++ended; ended < 3 && std::chrono::steady_clock::now() - start < 10s;)
      std::this_thread::sleep_for(1ms);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

TEST(RankGroup, ALossInOneRingEndsTheOther) {
  loseOneOfFour(GroupSizes({.fsdp = 2}), QLORA_GROUP_FSDP);
  loseOneOfFour(GroupSizes({.tp = 2}), QLORA_GROUP_TP);
}

TEST(RankGroup, NoticesALossToEitherRingBetweenCalls) {
  std::atomic<bool> isDone = false;
  std::latch met(6);
  runJob(6, 3, [&](RankGroup &group) {
    EXPECT_TRUE(group.collectives().barrier().isOk());
    met.arrive_and_wait();
    if (group.rank() == 2)
      return; // rank 0's neighbour in the fsdp ring only
    const auto start = std::chrono::steady_clock::now();
    if (group.rank() == 0) {
      while (group.collectives().checkOthers().isOk() &&
             std::chrono::steady_clock::now() - start < 5s)
        std::this_thread::sleep_for(1ms);
      EXPECT_EQ(group.collectives().checkOthers().code(), StatusCode::kAborted);
      isDone = true;
    }
    while (!isDone && std::chrono::steady_clock::now() - start < 10s)
      std::this_thread::sleep_for(1ms);
  });
}

TEST(RankGroup, AnAbortOfOneRingEndsBoth) {
  runJob(4, 2, [](RankGroup &group) {
    ASSERT_TRUE(group.collectives().barrier().isOk());
    if (group.rank() != 1) {
      EXPECT_FALSE(group.collectives(QLORA_GROUP_FSDP).barrier().isOk() &&
                   group.collectives().barrier().isOk());
      return;
    }
    group.collectives().abort();
    EXPECT_EQ(group.collectives(QLORA_GROUP_FSDP).barrier().code(),
              StatusCode::kAborted);
  });
}

/// All ranks end with one line, the report of the lowest rank that failed. It
/// does not matter which ranks wait or compute meanwhile.
TEST(RankGroup, AllShowTheFirstCause) {
  const auto start = std::chrono::steady_clock::now();
  runJob(5, 1, [](RankGroup &group) {
    const bool fails = group.rank() == 3 || group.rank() == 1;
    std::this_thread::sleep_for(200ms); // all have joined
    if (group.rank() == 4)
      std::this_thread::sleep_for(300ms); // it notices the failure afterwards
    const Status own = fails
                           ? Status::invalid("no room on disk {}", group.rank())
                           : group.collectives().barrier();
    ASSERT_FALSE(own.isOk());
    EXPECT_EQ(group.end(own).message(), "rank 1: no room on disk 1");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

/// A failed rank's own report replaces other ranks' errors that refer to it.
TEST(RankGroup, AnothersErrorGivesWayToItsOwnWords) {
  runJob(3, 1, [](RankGroup &group) {
    if (group.rank() == 2)
      std::this_thread::sleep_for(100ms);
    const Status own =
        group.rank() == 2 ? Status::invalid("the folder is full")
                          : Status(StatusCode::kAborted, "rank 2 has said why");
    EXPECT_EQ(group.end(own).message(), "rank 2: the folder is full");
  });
}

/// A rank that cannot start still joins, to report its error.
TEST(RankGroup, ARankThatCannotStartTellsTheOthers) {
  for (const int failing : {0, 2}) {
    FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
    RankEnvironment env;
    env.limits = kTenthLimits;
    env.worldSize = 3;
    env.masterPort = portOf(socket).value();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        RankEnvironment own = env;
        own.rank = rank;
        if (rank == 1)
          std::this_thread::sleep_for(500ms); // it joins after the failure
        const auto start = std::chrono::steady_clock::now();
        auto group = RankGroup::join(
            own, rank == 0 ? std::move(socket) : FileDescriptor(), 20s, {},
            rank == failing ? Status::invalid("no program") : Status::ok());
        EXPECT_EQ(group.status().message(),
                  fmt::format("rank {} ({}): no program", failing, hostName()));
        EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
      });
    for (std::thread &thread : threads)
      thread.join();
  }
}

TEST(RankGroup, ATakenPortIsNamed) {
  FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
  RankEnvironment env;
  env.limits = kTenthLimits;
  env.worldSize = 2;
  env.masterPort = portOf(socket).value();
  std::thread other([&] {
    FileDescriptor client(accept(socket.get(), nullptr, nullptr));
    EXPECT_TRUE(sendAll(client, std::string(64, '2').data(), 64).isOk());
  });
  const std::string line =
      fmt::format("rank 0 cannot listen at 127.0.0.1:{}: another program uses "
                  "the port. Fix: set another MASTER_PORT on every rank",
                  env.masterPort);
  EXPECT_EQ(RankGroup::join(env, FileDescriptor(), 5s).status().message(),
            line);
  env.rank = 1;
  EXPECT_EQ(RankGroup::join(env, FileDescriptor(), 5s).status().message(),
            line);
  other.join();
}
