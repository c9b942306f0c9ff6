// SPDX-License-Identifier: MIT

// Ranks (of one process here) find each other and open each other's memory.

#include "runtime/Ranks/LocalRanks.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include "runtime/Base/HostMemory.h"

using namespace qlora;
using namespace std::chrono_literals;
using Access = LocalRanks::Access;

class LocalRanksTest : public testing::Test {
protected:
  void SetUp() override {
    FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
    const int port = portOf(socket).value();
    server = TcpStoreServer::start(std::move(socket), "s").value();
    store = TcpStore::connect("127.0.0.1", port, "s", 10s).value();
  }

  std::unique_ptr<TcpStoreServer> server;
  std::unique_ptr<TcpStore> store;
};

TEST_F(LocalRanksTest, CountsThoseOfThisMachineOnly) {
  LocalRanks alone;
  EXPECT_EQ(alone.rank(), 0);
  EXPECT_EQ(alone.size(), 1);
  ASSERT_TRUE(store->set("machine/0", "elsewhere").isOk());
  auto second = LocalRanks::find(*store, 1, 2, 10s);
  ASSERT_TRUE(second.isOk()) << second.status().message();
  EXPECT_EQ(second->rank(), 0);
  EXPECT_EQ(second->size(), 1);
  auto third = LocalRanks::find(*store, 2, 3, 10s);
  ASSERT_TRUE(third.isOk()) << third.status().message();
  EXPECT_EQ(third->rank(), 1);
  EXPECT_EQ(third->size(), 2);
  EXPECT_FALSE(LocalRanks::find(*store, 0, 9, 10ms).isOk());
}

TEST_F(LocalRanksTest, OpensWhatAnotherPublished) {
  auto ranks = LocalRanks::find(*store, 0, 1, 10s);
  ASSERT_TRUE(ranks.isOk()) << ranks.status().message();
  EXPECT_FALSE(ranks->open("memory", 10ms).isOk());
  const FileDescriptor memory(HostMemory::createShared("test", 4096).value());
  ASSERT_TRUE(ranks->publish("memory", memory, Access::kReadWrite).isOk());
  ASSERT_TRUE(ranks->publish("file", memory, Access::kRead).isOk());
  auto there = ranks->open("memory", 10s);
  ASSERT_TRUE(there.isOk()) << there.status().message();
  EXPECT_EQ(there->access, Access::kReadWrite);
  HostMemory::shared(there->memory.get(), 4096).value().bytes()[7] = 5;
  EXPECT_EQ(HostMemory::shared(memory.get(), 4096).value().bytes()[7], 5);
  auto file = ranks->open("file", 10s);
  ASSERT_TRUE(file.isOk()) << file.status().message();
  EXPECT_EQ(file->access, Access::kRead);
  EXPECT_EQ(fcntl(file->memory.get(), F_GETFL) & O_ACCMODE, O_RDONLY);
}

TEST_F(LocalRanksTest, NamesWhatCannotBeOpened) {
  auto ranks = LocalRanks::find(*store, 0, 1, 10s);
  ASSERT_TRUE(ranks.isOk()) << ranks.status().message();
  const FileDescriptor closed;
  ASSERT_TRUE(ranks->publish("memory", closed, Access::kRead).isOk());
  const Status status = ranks->open("memory", 10s).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("shares (memory, /proc/"), std::string::npos);
}
