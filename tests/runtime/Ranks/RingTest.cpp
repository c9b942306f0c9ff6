// SPDX-License-Identifier: MIT

// Neighbours find each other even if unrelated clients or wrong ranks connect.

#include "runtime/Ranks/Ring.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/runtime/Ranks/Served.h"

using namespace qlora;
using namespace std::chrono_literals;

/// Returns the announcement of a rank that the test plays: 32 bytes for the
/// proof, its port and its address.
static std::string placeOf(const FileDescriptor &listening) {
  return std::string(32, 'x') + std::to_string(portOf(listening).value()) +
         " 127.0.0.1";
}

/// A client that connects without a proof is not accepted as the previous rank.
TEST(Ring, StrangersAreNoNeighbours) {
  Served served(2);
  FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
  Rendezvous second = served.connectAs(1, 2);
  std::thread other([&] {
    // The client receives rank 0's port and the bytes that the proof covers.
    const std::string found = second.exchange(placeOf(listening), 5s).value();
    const FileDescriptor stranger =
        std::move(connectTo("127.0.0.1", std::stoi(found.substr(32)), 1s))
            .value();
    EXPECT_TRUE(sendAll(stranger, found.data(), 32).isOk());
    char answer;
    EXPECT_FALSE(receiveAll(stranger, &answer, 1).isOk());
    EXPECT_HAS(second.exchange(std::string(), 5s).status().message(),
               "rank 0 (node0): the previous rank has not connected in 0.3 s");
  });
  Rendezvous meeting = served.connectAs(0, 2);
  EXPECT_HAS(Ring::connect(meeting, "job", 300ms, 1s).status().message(),
             "rank 0 (node0): the previous rank has not connected in 0.3 s");
  other.join();
}

/// The previous rank is found although a silent stranger connected first.
TEST(Ring, WhoSaysNothingDoesNotStandInTheWay) {
  Served served(2);
  const FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
  Rendezvous second = served.connectAs(1, 2);
  std::thread other([&] {
    const std::string found = second.exchange(placeOf(listening), 5s).value();
    const int port = std::stoi(found.substr(32));
    Digest drawn;
    std::copy_n(found.begin(), drawn.size(), drawn.begin());
    const FileDescriptor silent =
        std::move(connectTo("127.0.0.1", port, 1s)).value();
    std::vector<FileDescriptor> lanes;
    for (const char *role : {"ring 1", "heartbeat 1"}) {
      lanes.push_back(std::move(connectTo("127.0.0.1", port, 1s)).value());
      const Digest proof = proofOf("job", role, drawn);
      EXPECT_TRUE(sendAll(lanes.back(), proof.data(), proof.size()).isOk());
    }
    EXPECT_TRUE(setTimeout(silent, 5s).isOk());
    char answer;
    EXPECT_EQ(receiveAll(silent, &answer, 1).code(), StatusCode::kAborted);
    EXPECT_TRUE(second.exchange(std::string(), 5s).isOk());
  });
  Rendezvous meeting = served.connectAs(0, 2);
  RankTimeLimits limits = kTenthLimits;
  limits.handshake = 50ms;
  EXPECT_TRUE(Ring::connect(meeting, "job", 20s, 1s, limits).isOk());
  other.join();
}

/// A rank that knows the secret but is not the previous rank is not accepted:
/// rank 0 of another job connects instead of rank 1.
TEST(Ring, AnotherRankIsNoNeighbour) {
  Served served(2), elsewhere(2);
  Rendezvous first = served.connectAs(1, 2), last = elsewhere.connectAs(1, 2);
  FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
  std::thread misleading([&] {
    const std::string found = first.exchange(placeOf(listening), 5s).value();
    EXPECT_TRUE(last.exchange(found, 5s).isOk());
    EXPECT_FALSE(first.exchange(std::string(), 9s).isOk());
    EXPECT_FALSE(last.exchange(std::string(), 9s).isOk());
  });
  std::thread second([&] {
    Rendezvous meeting = elsewhere.connectAs(0, 2);
    EXPECT_FALSE(Ring::connect(meeting, "job", 300ms, 1s).isOk());
  });
  Rendezvous meeting = served.connectAs(0, 2);
  EXPECT_HAS(Ring::connect(meeting, "job", 300ms, 1s).status().message(),
             "the previous rank has not connected in 0.3 s");
  misleading.join();
  second.join();
}
