// SPDX-License-Identifier: MIT

// The rendezvous: unrelated or hostile clients, and ranks that cannot start
// together. All these ranks get the same error.

#include "runtime/Ranks/Rendezvous.h"

#include <gtest/gtest.h>

#include <sys/socket.h>

#include <thread>

#include "tests/runtime/Ranks/Served.h"

using namespace qlora;
using namespace std::chrono_literals;

namespace {

using Rank = std::function<StatusOr<std::string>(Served &)>;

/// Expects that every rank gets the error `line` from a server.
void expectAll(const RendezvousServer::Terms &terms,
               const std::vector<Rank> &ranks, const std::string &line) {
  Served served(terms);
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (const Rank &rank : ranks) {
    threads.emplace_back(
        [&] { EXPECT_EQ(rank(served).status().message(), line); });
    std::this_thread::sleep_for(50ms); // the order of connections is fixed
  }
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

Rank comes(int rank, int ranks, StatusOr<std::string> value = std::string("x"),
           std::string version = "1.0") {
  return [=](Served &served) {
    return served.exchange(rank, ranks, value, version);
  };
}

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

TEST(Rendezvous, RanksThatDoNotBelongTogetherAreAllTold) {
  const auto terms = termsOf(2, "job");
  expectAll(terms, {comes(0, 2), comes(0, 2)},
            "rank 0 was started twice, on node0 and node0. Fix: give each "
            "process its own rank");
  expectAll(
      terms, {comes(0, 2), comes(1, 3)},
      "rank 1 (node1) was started as one of 3 ranks, but rank 0 as one of 2. "
      "Fix: start all ranks with the same number");
  expectAll(terms, {comes(0, 2), comes(1, 2, std::string("x"), "1.1")},
            "rank 1 (node1) has qlora-run 1.1, but rank 0 has 1.0. Fix: "
            "install the same version on every host");
}

TEST(Rendezvous, OneThatCannotTakePartTellsAll) {
  expectAll(
      termsOf(3, "job"),
      {comes(0, 3), comes(2, 3, Status::invalid("no program")), comes(1, 3)},
      "no program");
}

TEST(Rendezvous, AllAreToldWhoIsMissing) {
  auto terms = termsOf(4, "job");
  terms.patience = 500ms;
  expectAll(
      terms, {comes(0, 4), comes(2, 4)},
      "rank 0 at host:1 was not reached in 0.5 s by rank 1, 3. Fix: start the "
      "missing ranks, and check that the host of rank 0 is up and its port "
      "open");
}

TEST(Rendezvous, AllAreToldOfOneThatEnds) {
  const Rank leaves = [](Served &served) -> StatusOr<std::string> {
    const auto value =
        served.connectAs(1, 3).exchange(std::string("x"), -900ms);
    EXPECT_HAS(value.status().message(),
               "rank 1 (node1) lost its connection to rank 0 at 127.0.0.1:");
    return Status::invalid("rank 1 (node1) ended during the rendezvous. Fix: "
                           "see the last lines of its output");
  };
  expectAll(termsOf(3, "job"), {comes(0, 3), leaves},
            "rank 1 (node1) ended during the rendezvous. Fix: see the last "
            "lines of its output");
}

/// In the second exchange, ranks report whether they reached their neighbours.
TEST(Rendezvous, AllAreToldOfARingThatDoesNotClose) {
  const auto meets = [](int rank, StatusOr<std::string> second) -> Rank {
    return [=](Served &served) -> StatusOr<std::string> {
      Rendezvous client = served.connectAs(rank, 2);
      QLORA_RETURN_IF_ERROR(client.exchange(std::string("x"), 20s).status());
      return client.exchange(second, 20s);
    };
  };
  expectAll(
      termsOf(2, "job"),
      {meets(0, Status::invalid("a closed port")), meets(1, std::string())},
      "a closed port");
}

TEST(Rendezvous, AllAreToldOfAnotherSecret) {
  auto terms = termsOf(2, "job");
  terms.limits.stranger = 200ms;
  std::string refused;
  const Rank strange = [&](Served &served) -> StatusOr<std::string> {
    refused = served.connect("other", selfOf(1, 2)).status().message();
    return Status::invalid(
        "rank 1 (127.0.0.1) has another QLORA_JOB_SECRET than rank 0 at "
        "host:1. Fix: give all ranks of a job the same secret, and each job "
        "its own MASTER_PORT");
  };
  expectAll(terms, {comes(0, 2), strange},
            "rank 1 (127.0.0.1) has another QLORA_JOB_SECRET than rank 0 at "
            "host:1. Fix: give all ranks of a job the same secret, and each "
            "job its own MASTER_PORT");
  EXPECT_HAS(refused, "rank 1 (127.0.0.1) has another QLORA_JOB_SECRET than "
                      "rank 0 at 127.0.0.1:");
}

/// A client with another secret does not disturb ranks that connect.
TEST(Rendezvous, AnotherSecretDoesNotEndAStart) {
  Served served(2);
  EXPECT_FALSE(served.connect("other", selfOf(1, 2)).isOk());
  std::thread second(
      [&] { EXPECT_EQ(served.exchange(1, 2, std::string("b")).value(), "a"); });
  EXPECT_EQ(served.exchange(0, 2, std::string("a")).value(), "b");
  second.join();
}

/// A client with an invalid proof of the secret receives nothing.
TEST(Rendezvous, TheServerTellsNothingWithoutAProof) {
  Served served(1);
  const FileDescriptor stranger =
      std::move(connectTo("127.0.0.1", served.port, 1s)).value();
  char text[64] = {};
  EXPECT_TRUE(receiveAll(stranger, text, sizeof(RendezvousHello)).isOk());
  const RendezvousGreeting greeting;
  EXPECT_TRUE(sendAll(stranger, &greeting, sizeof greeting).isOk());
  EXPECT_EQ(receiveAll(stranger, text, 1).code(), StatusCode::kAborted);
}

TEST(Rendezvous, TheServerProvesTheSecretToo) {
  // This server accepts any proof of the client, but cannot prove that it knows
  // the secret: it sends arbitrary bytes, or repeats the client's proof.
  for (const bool repeats : {false, true}) {
    FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
    const int port = portOf(listening).value();
    std::thread impostor([&] {
      FileDescriptor socket(accept(listening.get(), nullptr, nullptr));
      const RendezvousHello hello;
      RendezvousGreeting greeting;
      EXPECT_TRUE(sendAll(socket, &hello, sizeof hello).isOk());
      EXPECT_TRUE(receiveAll(socket, &greeting, sizeof greeting).isOk());
      const Digest &sent = repeats ? greeting.proof : greeting.drawn;
      EXPECT_TRUE(sendAll(socket, sent.data(), sent.size()).isOk());
    });
    EXPECT_HAS(Rendezvous::connect("127.0.0.1", port, "job", selfOf(1, 2), 5s)
                   .status()
                   .message(),
               "has another QLORA_JOB_SECRET");
    impostor.join();
  }
}

/// The port belongs to another program, which sends text.
TEST(Rendezvous, APortOfAnotherProgramIsNamed) {
  FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
  const int port = portOf(listening).value();
  std::thread other([&] {
    constexpr std::string_view said =
        "220 mail server, at your service, which says a lot";
    FileDescriptor socket(accept(listening.get(), nullptr, nullptr));
    EXPECT_TRUE(sendAll(socket, said.data(), said.size()).isOk());
    std::this_thread::sleep_for(500ms);
  });
  EXPECT_EQ(Rendezvous::connect("127.0.0.1", port, "job", selfOf(1, 2), 5s)
                .status()
                .message(),
            portTaken(fmt::format("127.0.0.1:{}", port)).message());
  other.join();
}

/// The port closes the first two connections immediately, like the server of an
/// earlier start that is about to end. The client connects again.
TEST(Rendezvous, AClosedConnectionIsTriedAgain) {
  FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
  const int port = portOf(listening).value();
  std::unique_ptr<RendezvousServer> server;
  std::thread late([&] {
    for (int i = 0; i < 2; ++i)
      FileDescriptor(accept(listening.get(), nullptr, nullptr));
    server = std::move(
        RendezvousServer::start(std::move(listening), termsOf(1, "job"))
            .value());
  });
  EXPECT_TRUE(
      Rendezvous::connect("127.0.0.1", port, "job", selfOf(0, 1), 5s).isOk());
  late.join();
}

TEST(Rendezvous, HostileClientsEndTheirConnectionOnly) {
  Served served(1);
  for (int i = 0; i < 20; ++i) {
    FileDescriptor stranger =
        std::move(connectTo("127.0.0.1", served.port, 1s)).value();
    char garbage[64] = "GET / HTTP/1.1\r\n";
    EXPECT_TRUE(sendAll(stranger, garbage, sizeof garbage).isOk());
  }
  EXPECT_EQ(served.exchange(0, 1, std::string("here")).value(), "here");
}

TEST(Rendezvous, ServerMayEndFirst) {
  auto served = std::make_unique<Served>(2);
  Rendezvous client = served->connectAs(0, 2);
  served.reset();
  EXPECT_FALSE(client.exchange(std::string("b"), 5s).isOk());
}

/// Client and server both close a connection that stays silent.
TEST(Rendezvous, WhoSaysNothingIsLetGo) {
  auto terms = termsOf(1, "job");
  terms.limits.handshake = 50ms;
  Served served(terms);
  const FileDescriptor silent =
      std::move(connectTo("127.0.0.1", served.port, 1s)).value();
  ASSERT_TRUE(setTimeout(silent, 5s).isOk()); // bounds the test's own wait
  RendezvousHello hello;
  EXPECT_TRUE(receiveAll(silent, &hello, sizeof hello).isOk());
  EXPECT_EQ(receiveAll(silent, &hello, 1).code(), StatusCode::kAborted);
}

TEST(Socket, ConnectingNowhereFailsInTime) {
  FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
  int port = portOf(socket).value();
  socket = FileDescriptor();
  auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(connectTo("127.0.0.1", port, 200ms).isOk());
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
}
