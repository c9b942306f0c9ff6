// SPDX-License-Identifier: MIT

// Heartbeats over socket pairs: silence, lost connections, goodbyes, and which
// rank shows which cause.

#include "runtime/Ranks/Heartbeat.h"

#include <gtest/gtest.h>

#include <sys/socket.h>

#include <set>

#include "runtime/Ranks/Socket.h"

using namespace qlora;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

static constexpr Heartbeat::Timing kQuick = {20ms, 10, 100ms, 300ms};

namespace {
/// A ring of heartbeats. The test itself plays the ranks in `played`.
class Circle {
public:
  explicit Circle(int size, std::set<int> played = {},
                  Heartbeat::Timing timing = kQuick)
      : aborts(size) {
    std::vector<std::array<Heartbeat::Peer, 2>> peers(size);
    for (int rank = 0; rank < size; ++rank) {
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
      const int next = (rank + 1) % size;
      peers[rank][1] = {next, FileDescriptor(ends[0])};
      peers[next][0] = {rank, FileDescriptor(ends[1])};
    }
    for (int rank = 0; rank < size; ++rank) {
      if (played.contains(rank)) {
        hearts.emplace_back();
        for (auto &peer : peers[rank])
          own.push_back(std::move(peer.socket));
        continue;
      }
      hearts.push_back(std::move(Heartbeat::start(
                                     rank, std::move(peers[rank]),
                                     [this, rank] { ++aborts[rank]; }, timing)
                                     .value()));
      hearts.back()->countSilence();
    }
  }
  ~Circle() { hearts.clear(); }

  /// Ends these ranks and returns the distinct causes that they show.
  std::set<std::string> shown(const std::set<int> &ranks) {
    std::mutex mutex;
    std::set<std::string> texts;
    std::vector<std::thread> threads;
    for (int rank : ranks)
      threads.emplace_back([&, rank] {
        const Cause cause =
            hearts[rank]->conclude({rank, true, "a closed connection"}, true);
        std::lock_guard lock(mutex);
        texts.insert(cause.text);
      });
    for (std::thread &thread : threads)
      thread.join();
    return texts;
  }

  std::vector<std::unique_ptr<Heartbeat>> hearts;
  std::vector<std::atomic<int>> aborts;
  std::vector<FileDescriptor> own; ///< sockets of played ranks: previous, next
};
} // namespace

TEST(Heartbeat, RanksThatLiveAndEndWellAreNoCause) {
  Circle circle(3);
  std::this_thread::sleep_for(300ms);
  for (const auto &heart : circle.hearts)
    EXPECT_FALSE(heart->hasCause());
  circle.hearts[1].reset(); // sends a goodbye
  std::this_thread::sleep_for(300ms);
  EXPECT_FALSE(circle.hearts[0]->hasCause() || circle.hearts[2]->hasCause());
  EXPECT_EQ(circle.aborts[0] + circle.aborts[1] + circle.aborts[2], 0);
}

/// Rank 1 sends a goodbye to rank 2, which then ends immediately without a
/// goodbye.
TEST(Heartbeat, WhoIsToldGoodbyeMayEndWithoutAWord) {
  char byte;
  for (int round = 0; round < 400; ++round) {
    // Rank 1 sends one heartbeat, then the goodbye. Rank 2 sends none. The
    // interval is an hour, so this silence is no error.
    Circle circle(3, {2}, {1h, 10, 100ms, 300ms});
    ASSERT_EQ(recv(circle.own[0].get(), &byte, 1, MSG_PEEK), 1); // a beat
    char rest[256];
    ASSERT_GT(recv(circle.own[0].get(), rest, sizeof rest, 0), 0);
    std::thread leaves([&] { circle.hearts[1].reset(); });
    while (recv(circle.own[0].get(), rest, sizeof rest, MSG_DONTWAIT) < 0)
      ;
    circle.own[0] = FileDescriptor();
    leaves.join();
    std::this_thread::sleep_for(500us); // time for rank 1's report
    ASSERT_FALSE(circle.hearts[0]->hasCause()) << round;
  }
}

/// All ranks show the same message, which names the hosts of the two ranks at
/// the silent connection.
TEST(Heartbeat, SilenceEndsAllWithOneLine) {
  Circle circle(5, {2});
  for (int rank : {0, 1, 3, 4})
    circle.hearts[rank]->nameHosts({"a", "a", "b", "b", "c"});
  const auto start = Clock::now();
  EXPECT_EQ(circle.shown({0, 1, 3, 4}),
            std::set<std::string>{
                "no heartbeat between rank 1 (a) and rank 2 (b) for 0.2 s. "
                "Fix: check that both processes run and that their hosts reach "
                "each other"});
  EXPECT_LT(Clock::now() - start, 2s);
  for (int rank : {0, 1, 3, 4})
    EXPECT_GE(circle.aborts[rank], 1) << rank;
}

TEST(Heartbeat, AKilledRankEndsAllWithOneLine) {
  Circle circle(4, {3});
  const auto start = Clock::now();
  circle.own.clear(); // its connections close
  EXPECT_EQ(circle.shown({0, 1, 2}),
            std::set<std::string>{
                "rank 3 ended without an error message. Fix: check on its host "
                "whether it was killed, for memory or by its launcher"});
  EXPECT_LT(Clock::now() - start, 1s);
}

TEST(Heartbeat, OwnWordsComeBeforeWhatOthersSaw) {
  Circle circle(5, {1});
  circle.own.clear();
  std::thread other([&] {
    EXPECT_EQ(
        circle.hearts[4]->conclude({4, false, "the disk is full"}, false).text,
        "the disk is full");
  });
  EXPECT_EQ(circle.shown({0, 2, 3}), std::set<std::string>{"the disk is full"});
  other.join();
}

TEST(Heartbeat, TheChoiceStands) {
  Circle circle(2);
  EXPECT_EQ(circle.hearts[1]->conclude({1, false, "first"}, false).text,
            "first");
  EXPECT_EQ(circle.hearts[0]->conclude({0, false, "later"}, false).text,
            "first");
}

/// A rank that only sees a closed connection waits for a cause from the other
/// ranks. If none arrives, it shows the closed connection.
TEST(Heartbeat, WhatWasSeenHereIsTheLastResort) {
  Circle circle(2);
  const auto start = Clock::now();
  EXPECT_EQ(circle.shown({0}), std::set<std::string>{"a closed connection"});
  EXPECT_GE(Clock::now() - start, kQuick.word);
}

TEST(Heartbeat, BeatsTellWhichCallARankIsIn) {
  Circle circle(2);
  circle.hearts[1]->setCall(42);
  const auto start = Clock::now();
  while (circle.hearts[0]->callOf(1) != 42 && Clock::now() - start < 5s)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(circle.hearts[0]->callOf(0), 42u);
  EXPECT_EQ(circle.hearts[1]->callOf(1), 0u);
}

/// A text may arrive in fragments of any size; a long text is truncated.
TEST(Heartbeat, TextsOfAnyLengthArrive) {
  Circle circle(2);
  const std::string text(5000, 'x');
  const std::string shown = text.substr(0, 2048);
  EXPECT_EQ(circle.hearts[0]->conclude({0, false, text}, false).text, shown);
  EXPECT_EQ(circle.shown({1}), std::set<std::string>{shown});
}
