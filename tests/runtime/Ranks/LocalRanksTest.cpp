// SPDX-License-Identifier: MIT

// Ranks (threads here) can open each other's shared memory, but no other files.

#include "runtime/Ranks/LocalRanks.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/Base/HostMemory.h"
#include "tests/runtime/Ranks/ThreadedRanks.h"
#include "tests/runtime/TemporaryFolder.h"

using namespace qlora;
using namespace std::chrono_literals;
using Access = LocalRanks::Access;

/// allGather() returns `texts`, in which "here" is this rank's text.
class Told final : public Collectives {
public:
  Told(std::vector<std::string> texts, int own)
      : texts(std::move(texts)), own(own) {}
  int rank() const override { return own; }
  int size() const override { return static_cast<int>(texts.size()); }
  Status run(const CollectiveCall &) override { return Status::ok(); }
  StatusOr<std::vector<std::string>> allGather(std::string_view mine) override {
    std::vector<std::string> all = texts;
    for (std::string &text : all)
      text = text == "here" ? mine : text;
    return all;
  }
  void abort() override {}

private:
  std::vector<std::string> texts;
  int own;
};

TEST(LocalRanks, CountsThoseOfThisMachineOnly) {
  LocalRanks alone;
  EXPECT_EQ(alone.rank(), 0);
  EXPECT_EQ(alone.size(), 1);
  for (int rank : {1, 3}) {
    Told group({"elsewhere", "here", "elsewhere", "here"}, rank);
    auto ranks = LocalRanks::find(group);
    ASSERT_TRUE(ranks.isOk()) << ranks.status().message();
    EXPECT_EQ(ranks->rank(), rank / 2);
    EXPECT_EQ(ranks->size(), 2);
  }
}

/// Rank 0 of two shares a file of `size` bytes. Both ranks expect `bytes`
/// bytes. `owner` is the file's user id, or -1 for this user.
static StatusOr<LocalRanks::Shared> shared(Access access, uint64_t size,
                                           uint64_t bytes, int owner = -1) {
  StatusOr<LocalRanks::Shared> there = LocalRanks::Shared();
  runRanks(2, [&](RingCollectives &group) {
    auto ranks = LocalRanks::find(group);
    ASSERT_TRUE(ranks.isOk()) << ranks.status().message();
    LocalRanks::Shared own;
    own.access = access;
    if (group.rank() == 0) {
      own.memory = FileDescriptor(HostMemory::createShared("t", size).value());
      ASSERT_EQ(fchown(own.memory.get(), static_cast<uid_t>(owner), -1), 0);
    }
    auto result = ranks->share(group, "memory", std::move(own), bytes);
    if (group.rank() == 1) {
      there = std::move(result);
      return;
    }
    EXPECT_EQ(result.isOk(),
              owner == -1 && (size == bytes || access == Access::kRead));
    if (result.isOk() && access == Access::kReadWrite)
      HostMemory::shared(result->memory.get(), size).value().bytes()[7] = 5;
  });
  return there;
}

TEST(LocalRanks, OpensWhatTheFirstShares) {
  auto there = shared(Access::kReadWrite, 4096, 4096);
  ASSERT_TRUE(there.isOk()) << there.status().message();
  EXPECT_EQ(HostMemory::shared(there->memory.get(), 4096).value().bytes()[7],
            5);
  auto file = shared(Access::kRead, 8192, 4096);
  ASSERT_TRUE(file.isOk()) << file.status().message();
  EXPECT_EQ(file->access, Access::kRead);
  EXPECT_EQ(fcntl(file->memory.get(), F_GETFL) & O_ACCMODE, O_RDONLY);
}

TEST(LocalRanks, RefusesMemoryOfAnotherSize) {
  const Status status = shared(Access::kReadWrite, 8192, 4096).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("it has 8192 bytes instead of 4096"),
            std::string::npos)
      << status.message();
}

TEST(LocalRanks, WritesNoMemoryOfAnotherUser) {
  if (geteuid() != 0)
    GTEST_SKIP() << "only root gives a file to another user";
  const Status status = shared(Access::kReadWrite, 4096, 4096, 4711).status();
  EXPECT_NE(status.message().find("it belongs to another user"),
            std::string::npos)
      << status.message();
}

/// A descriptor that another process offers is not trusted, because it could
/// refer to any of our files.
TEST(LocalRanks, RefusesWhatIsNoMemory) {
  struct Offer {
    int64_t process, descriptor;
    Access access;
  };
  const FileDescriptor folder(open("/tmp", O_RDONLY));
  const FileDescriptor null(open("/dev/null", O_RDWR));
  const TemporaryFolder temporary;
  ASSERT_EQ(mkfifo(temporary.path("pipe").c_str(), 0600), 0);
  const FileDescriptor pipe(
      open(temporary.path("pipe").c_str(), O_RDONLY | O_NONBLOCK));
  const std::pair<Offer, const char *> offers[] = {
      {{getpid(), folder.get(), Access::kRead}, "it is not a file"},
      {{getpid(), null.get(), Access::kReadWrite}, "it is not a file"},
      {{getpid(), 999999, Access::kRead}, "No such file"},
      {{-1, 0, Access::kRead}, "No such file"},
      // Opening a pipe without a writer would block.
      {{getpid(), pipe.get(), Access::kRead}, "it is not a file"}};
  Told machines({"here", "here"}, 1);
  const LocalRanks ranks = LocalRanks::find(machines).value();
  for (const auto &[offer, why] : offers) {
    Told group(
        {std::string(reinterpret_cast<const char *>(&offer), sizeof offer),
         "here"},
        1);
    const Status status =
        ranks.share(group, "memory", LocalRanks::Shared(), 0).status();
    EXPECT_NE(status.message().find(why), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("shares (memory, /proc/"),
              std::string::npos);
  }
}
