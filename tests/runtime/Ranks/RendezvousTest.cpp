// SPDX-License-Identifier: MIT

// The rendezvous and the ring that comes of it: strangers, hostile clients and
// ranks that do not belong together.

#include "runtime/Ranks/Rendezvous.h"

#include <gtest/gtest.h>

#include <sys/socket.h>

#include <thread>

#include "runtime/Ranks/Ring.h"

using namespace qlora;
using namespace std::chrono_literals;

namespace {

struct Served {
  std::unique_ptr<RendezvousServer> server;
  int port = 0;

  explicit Served(int ranks, std::string secret = "job",
                  std::chrono::milliseconds handshakeTimeout = 10s) {
    FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
    port = portOf(socket).value();
    server = std::move(
        RendezvousServer::start(std::move(socket), secret, ranks,
                                handshakeTimeout)
            .value());
  }
  StatusOr<std::string> exchange(int rank, int ranks, std::string value,
                                 std::chrono::milliseconds timeout = 5s) {
    QLORA_ASSIGN_OR_RETURN(Rendezvous client, connect("job"));
    EXPECT_EQ(client.localAddress(), "127.0.0.1");
    return client.exchange(rank, ranks, value, timeout);
  }
  StatusOr<Rendezvous> connect(std::string secret) {
    return Rendezvous::connect("127.0.0.1", port, secret, 5s);
  }
};

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

} // namespace

TEST(Rendezvous, GivesTheValueOfTheNextRank) {
  Served served(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      std::this_thread::sleep_for(rank * 20ms);
      const std::string value("x\0y", 3);
      EXPECT_EQ(served.exchange(rank, 3, value + std::to_string(rank)).value(),
                value + std::to_string((rank + 1) % 3));
    });
  for (std::thread &rank : ranks)
    rank.join();
}

TEST(Rendezvous, RefusesRanksThatDoNotBelongTogether) {
  Served served(2);
  std::thread first([&] {
    EXPECT_HAS(served.exchange(0, 2, "a", 500ms).status().message(),
               "not all of the 2 ranks have started in 0.5 s");
  });
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(served.exchange(0, 2, "b").status().message(),
            "rank 0 refused this rank: there are two of rank 0");
  EXPECT_EQ(served.exchange(1, 3, "b").status().message(),
            "rank 0 refused this rank: it is rank 1 of 3, rank 0 is of 2");
  first.join();
}

TEST(Rendezvous, WrongSecretIsRefused) {
  Served served(2, "other");
  auto client = served.connect("job");
  ASSERT_FALSE(client.isOk());
  EXPECT_HAS(client.status().message(), "refused this rank");
}

/// A client that does not look at the server's proof gets nothing from it.
TEST(Rendezvous, TheServerTellsNothingWithoutAProof) {
  Served served(1);
  const FileDescriptor stranger =
      std::move(connectTo("127.0.0.1", served.port, 1s)).value();
  char text[64] = {};
  EXPECT_TRUE(receiveAll(stranger, text, 32).isOk());
  EXPECT_TRUE(sendAll(stranger, text, 64).isOk());
  EXPECT_EQ(receiveAll(stranger, text, 1).code(), StatusCode::kAborted);
}

TEST(Rendezvous, TheServerProvesTheSecretToo) {
  // It takes any client's proof for right, and has none of its own: it sends
  // something, or the client's.
  for (const size_t offset : {0, 32}) {
    FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
    const int port = portOf(listening).value();
    std::thread impostor([&] {
      FileDescriptor socket(accept(listening.get(), nullptr, nullptr));
      char text[64] = {};
      EXPECT_TRUE(sendAll(socket, text, 32).isOk());
      EXPECT_TRUE(receiveAll(socket, text, 64).isOk());
      EXPECT_TRUE(sendAll(socket, text + offset, 32).isOk());
    });
    EXPECT_HAS(
        Rendezvous::connect("127.0.0.1", port, "job", 5s).status().message(),
        "it has another secret");
    impostor.join();
  }
}

TEST(Rendezvous, HostileClientsEndTheirConnectionOnly) {
  Served served(1);
  for (int i = 0; i < 20; ++i) {
    FileDescriptor stranger =
        std::move(connectTo("127.0.0.1", served.port, 1s)).value();
    char garbage[64] = "GET / HTTP/1.1\r\n";
    EXPECT_TRUE(sendAll(stranger, garbage, sizeof garbage).isOk());
  }
  EXPECT_FALSE(served.exchange(0, 1, std::string(2000, 'k')).isOk());
  EXPECT_EQ(served.exchange(0, 1, "here").value(), "here");
}

TEST(Rendezvous, ServerMayEndFirst) {
  auto served = std::make_unique<Served>(2);
  Rendezvous client = served->connect("job").value();
  served.reset();
  EXPECT_FALSE(client.exchange(0, 2, "b", 5s).isOk());
}

/// Who reaches a rank's port without a proof is not the rank before it.
TEST(Ring, StrangersAreNoNeighbours) {
  Served served(2);
  FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
  const std::string place = std::string(32, 'x') +
                            std::to_string(portOf(listening).value()) +
                            " 127.0.0.1";
  std::thread other([&] {
    // It learns where rank 0 listens and what the proof is over.
    const std::string found = served.exchange(1, 2, place).value();
    const FileDescriptor stranger =
        std::move(connectTo("127.0.0.1", std::stoi(found.substr(32)), 1s))
            .value();
    EXPECT_TRUE(sendAll(stranger, found.data(), 32).isOk());
    char answer;
    EXPECT_FALSE(receiveAll(stranger, &answer, 1).isOk());
  });
  Rendezvous meeting = served.connect("job").value();
  EXPECT_EQ(Ring::connect(meeting, "job", 0, 2, 1s, 1s).status().message(),
            "the rank before it has not connected in 1 s");
  other.join();
}

/// Who connects and says nothing is let go, by both ends.
TEST(Rendezvous, WhoSaysNothingIsLetGo) {
  Served served(1, "job", 50ms);
  const FileDescriptor silent =
      std::move(connectTo("127.0.0.1", served.port, 1s)).value();
  ASSERT_TRUE(setTimeout(silent, 5s).isOk()); // a wait of ours ends too
  char text[33];
  EXPECT_TRUE(receiveAll(silent, text, 32).isOk()); // what the server draws
  EXPECT_EQ(receiveAll(silent, text, 1).code(), StatusCode::kAborted);

  const FileDescriptor listening =
      std::move(listenOn("127.0.0.1", 0)).value();
  const int port = portOf(listening).value();
  std::thread silentServer([&] {
    const FileDescriptor client(accept(listening.get(), nullptr, nullptr));
    EXPECT_TRUE(setTimeout(client, 5s).isOk());
    EXPECT_EQ(receiveAll(client, text, 1).code(), StatusCode::kAborted);
  });
  EXPECT_HAS(Rendezvous::connect("127.0.0.1", port, "job", 5s, 50ms)
                 .status()
                 .message(),
             "refused this rank");
  silentServer.join();
}

/// The rank before is found although a stranger came first, who is silent.
TEST(Ring, WhoSaysNothingDoesNotStandInTheWay) {
  Served served(2);
  FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
  const std::string place = std::string(32, 'x') +
                            std::to_string(portOf(listening).value()) +
                            " 127.0.0.1";
  FileDescriptor previous;
  std::thread other([&] {
    const std::string found = served.exchange(1, 2, place).value();
    const int port = std::stoi(found.substr(32));
    Digest drawn;
    std::copy_n(found.begin(), drawn.size(), drawn.begin());
    const FileDescriptor silent =
        std::move(connectTo("127.0.0.1", port, 1s)).value();
    previous = std::move(connectTo("127.0.0.1", port, 1s)).value();
    const Digest proof = proofOf("job", "ring 1", drawn);
    EXPECT_TRUE(sendAll(previous, proof.data(), proof.size()).isOk());
    EXPECT_TRUE(setTimeout(silent, 5s).isOk());
    char answer;
    EXPECT_EQ(receiveAll(silent, &answer, 1).code(), StatusCode::kAborted);
  });
  Rendezvous meeting = served.connect("job").value();
  EXPECT_TRUE(Ring::connect(meeting, "job", 0, 2, 20s, 1s, 50ms).isOk());
  other.join();
}

/// Who knows the secret, but is another rank than the one before, is not let
/// in: rank 0 of another meeting is sent where rank 1 is expected.
TEST(Ring, AnotherRankIsNoNeighbour) {
  Served served(2), elsewhere(2);
  FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
  const std::string place = std::string(32, 'x') +
                            std::to_string(portOf(listening).value()) +
                            " 127.0.0.1";
  std::thread misleading([&] {
    const std::string found = served.exchange(1, 2, place).value();
    EXPECT_TRUE(elsewhere.exchange(1, 2, found).isOk());
  });
  std::thread second([&] {
    Rendezvous meeting = elsewhere.connect("job").value();
    EXPECT_FALSE(Ring::connect(meeting, "job", 0, 2, 1s, 1s).isOk());
  });
  Rendezvous meeting = served.connect("job").value();
  EXPECT_EQ(Ring::connect(meeting, "job", 0, 2, 1s, 1s).status().message(),
            "the rank before it has not connected in 1 s");
  misleading.join();
  second.join();
}

TEST(Socket, ConnectingNowhereFailsInTime) {
  FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
  int port = portOf(socket).value();
  socket = FileDescriptor();
  auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(connectTo("127.0.0.1", port, 200ms).isOk());
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
}
