// SPDX-License-Identifier: MIT

// Sums over ranks (threads here), by messages and through shared memory: their
// bits, and what happens when one ends.

#include "runtime/Ranks/GlooCollectives.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

using namespace qlora;
using namespace std::chrono_literals;

/// How the data goes from rank to rank.
enum class Way { kMessages, kSharedWindow };

class GlooCollectivesTest : public testing::TestWithParam<Way> {
protected:
  /// Runs `body(collectives, rank)` as `size` ranks.
  static void runRanks(int size,
                       const std::function<void(Collectives &, int)> &body);
};

INSTANTIATE_TEST_SUITE_P(Ways, GlooCollectivesTest,
                         testing::Values(Way::kMessages, Way::kSharedWindow),
                         [](const auto &way) {
                           return way.param == Way::kMessages ? "Messages"
                                                              : "SharedWindow";
                         });

static std::optional<SharedWindow> windowOf(const FileDescriptor &memory,
                                            int rank, int size) {
  if (!memory.isOpen())
    return std::nullopt;
  return SharedWindow::map(FileDescriptor(dup(memory.get())), rank, size)
      .value();
}

void GlooCollectivesTest::runRanks(
    int size, const std::function<void(Collectives &, int)> &body) {
  FileDescriptor memory;
  if (GetParam() == Way::kSharedWindow)
    memory = SharedWindow::create(size).value();
  FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
  int port = portOf(socket).value();
  auto server = TcpStoreServer::start(std::move(socket), "s").value().release();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      auto store = TcpStore::connect("127.0.0.1", port, "s", 10s);
      ASSERT_TRUE(store.isOk()) << store.status().message();
      auto group = GlooCollectives::connect(**store, rank, size, 20s,
                                            windowOf(memory, rank, size));
      ASSERT_TRUE(group.isOk()) << group.status().message();
      body(**group, rank);
    });
  for (std::thread &thread : threads)
    thread.join();
  delete server;
}

static std::vector<float> dataOf(int rank, size_t count) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i)
    data[i] = 1.0f / static_cast<float>(1 + (i * 7 + rank * 13) % 101);
  return data;
}

TEST_P(GlooCollectivesTest, SumsHaveTheSameBitsEverywhereAndEveryTime) {
  constexpr int kRanks = 3;
  for (size_t count : {1u, 2u, 1000u, 300001u, 1234567u}) {
    std::vector<float> results[2][kRanks];
    for (auto &result : results)
      runRanks(kRanks, [&](Collectives &group, int rank) {
        result[rank] = dataOf(rank, count);
        Status status = group.allReduceSum(result[rank].data(), count);
        EXPECT_TRUE(status.isOk()) << status.message();
      });
    for (auto &result : results)
      for (auto &rank : result)
        EXPECT_EQ(std::memcmp(rank.data(), results[0][0].data(), 4 * count), 0);
    // The order is that of the ranks.
    for (size_t i = 0; i < count; i += 1 + count / 50)
      EXPECT_EQ(results[0][0][i], dataOf(0, count)[i] + dataOf(1, count)[i] +
                                      dataOf(2, count)[i]);
  }
}

TEST_P(GlooCollectivesTest, BarrierAndEmptySums) {
  runRanks(2, [](Collectives &group, int rank) {
    EXPECT_EQ(group.rank(), rank);
    EXPECT_EQ(group.size(), 2);
    EXPECT_TRUE(group.allReduceSum(nullptr, 0).isOk());
    EXPECT_TRUE(group.barrier().isOk());
  });
}

TEST_P(GlooCollectivesTest, ALostRankEndsTheOthers) {
  auto start = std::chrono::steady_clock::now();
  runRanks(3, [](Collectives &group, int rank) {
    EXPECT_TRUE(group.barrier().isOk());
    if (rank == 1)
      return; // its connections close
    std::vector<float> data(1000);
    Status status = group.allReduceSum(data.data(), 1000);
    EXPECT_EQ(status.code(), StatusCode::kAborted);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

TEST_P(GlooCollectivesTest, NoticesALostRankBetweenCalls) {
  runRanks(3, [](Collectives &group, int rank) {
    EXPECT_TRUE(group.barrier().isOk());
    EXPECT_TRUE(group.checkOthers().isOk());
    EXPECT_EQ(group.timeout(), 20s);
    EXPECT_TRUE(group.barrier().isOk());
    if (rank == 1)
      return; // its connections close
    auto start = std::chrono::steady_clock::now();
    while (group.checkOthers().isOk() &&
           std::chrono::steady_clock::now() - start < 5s)
      std::this_thread::sleep_for(1ms);
    EXPECT_EQ(group.checkOthers().code(), StatusCode::kAborted);
    std::this_thread::sleep_for(200ms); // the other one looks too
  });
}

TEST_P(GlooCollectivesTest, AbortWakesABlockedRank) {
  auto start = std::chrono::steady_clock::now();
  runRanks(2, [](Collectives &group, int rank) {
    EXPECT_TRUE(group.barrier().isOk());
    if (rank == 1) {
      std::this_thread::sleep_for(1s);
      return;
    }
    std::thread other([&] {
      std::this_thread::sleep_for(100ms);
      group.abort();
    });
    float x = 0;
    EXPECT_EQ(group.allReduceSum(&x, 1).code(), StatusCode::kAborted);
    other.join();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}
