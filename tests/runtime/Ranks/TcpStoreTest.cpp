// SPDX-License-Identifier: MIT

// The rendezvous store: values, waiting, strangers and hostile clients.

#include "runtime/Ranks/TcpStore.h"

#include <gtest/gtest.h>

#include <thread>

using namespace qlora;
using namespace std::chrono_literals;

namespace {

struct Served {
  std::unique_ptr<TcpStoreServer> server;
  int port = 0;

  explicit Served(std::string secret = "job") {
    FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
    port = portOf(socket).value();
    server =
        std::move(TcpStoreServer::start(std::move(socket), secret)).value();
  }
  std::unique_ptr<TcpStore> client() {
    return std::move(TcpStore::connect("127.0.0.1", port, "job", 5s)).value();
  }
};

} // namespace

TEST(TcpStore, KeepsValues) {
  Served served;
  auto a = served.client(), b = served.client();
  std::string value("x\0y", 3);
  ASSERT_TRUE(a->set("key", value).isOk());
  EXPECT_EQ(b->get("key", 1s).value(), value);
  EXPECT_EQ(a->get("key", 1s).value(), value);
  EXPECT_EQ(a->localAddress(), "127.0.0.1");
}

TEST(TcpStore, WaitsForAValue) {
  Served served;
  auto reader = served.client(), writer = served.client();
  std::thread late([&] {
    std::this_thread::sleep_for(50ms);
    EXPECT_TRUE(writer->set("late", "1").isOk());
  });
  EXPECT_EQ(reader->get("late", 5s).value(), "1");
  late.join();
  EXPECT_EQ(reader->get("never", 20ms).status().message(),
            "no rank has set 'never' in 0.02 s");
}

TEST(TcpStore, WrongSecretIsRefused) {
  Served served("other");
  auto client = TcpStore::connect("127.0.0.1", served.port, "job", 5s);
  ASSERT_FALSE(client.isOk());
  EXPECT_NE(client.status().message().find("refused this rank"),
            std::string::npos);
}

TEST(TcpStore, HostileClientsEndTheirConnectionOnly) {
  Served served;
  auto good = served.client();
  for (int i = 0; i < 20; ++i) {
    FileDescriptor stranger =
        std::move(connectTo("127.0.0.1", served.port, 1s)).value();
    char garbage[64] = "GET / HTTP/1.1\r\n";
    EXPECT_TRUE(sendAll(stranger, garbage, sizeof garbage).isOk());
  }
  EXPECT_TRUE(good->set("still", "here").isOk());
  EXPECT_FALSE(good->set(std::string(2000, 'k'), "").isOk());
  EXPECT_EQ(good->get("still", 1s).value(), "here");
}

TEST(TcpStore, ServerMayEndFirst) {
  auto served = std::make_unique<Served>();
  auto client = served->client();
  served.reset();
  EXPECT_FALSE(client->set("a", "b").isOk());
}

TEST(Socket, ConnectingNowhereFailsInTime) {
  FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
  int port = portOf(socket).value();
  socket = FileDescriptor();
  auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(connectTo("127.0.0.1", port, 200ms).isOk());
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
}
