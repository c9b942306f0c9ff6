// SPDX-License-Identifier: MIT

// A rendezvous server on the loopback interface.

#ifndef QLORA_TESTS_RUNTIME_RANKS_SERVED_H
#define QLORA_TESTS_RUNTIME_RANKS_SERVED_H

#include "tests/runtime/Ranks/ThreadedRanks.h"

namespace qlora {

struct Served {
  std::unique_ptr<RendezvousServer> server;
  int port = 0;

  explicit Served(RendezvousServer::Terms terms) {
    FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
    port = portOf(socket).value();
    server = std::move(
        RendezvousServer::start(std::move(socket), std::move(terms)).value());
  }
  explicit Served(int ranks) : Served(termsOf(ranks, "job")) {}

  StatusOr<std::string> exchange(int rank, int ranks,
                                 const StatusOr<std::string> &value,
                                 std::string version = "1.0") {
    Rendezvous::Self self = selfOf(rank, ranks);
    self.version = version;
    QLORA_ASSIGN_OR_RETURN(Rendezvous client, connect("job", self));
    EXPECT_EQ(client.localAddress(), "127.0.0.1");
    return client.exchange(value, std::chrono::seconds(20));
  }
  StatusOr<Rendezvous> connect(std::string secret, Rendezvous::Self self) {
    return Rendezvous::connect("127.0.0.1", port, secret, std::move(self),
                               std::chrono::seconds(5), kTenthLimits);
  }
  Rendezvous connectAs(int rank, int ranks) {
    return std::move(connect("job", selfOf(rank, ranks))).value();
  }
};

} // namespace qlora

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

#endif // QLORA_TESTS_RUNTIME_RANKS_SERVED_H
