// SPDX-License-Identifier: MIT

// Which ranks of a machine read a data file, and that all have the same index.
// Ranks are threads here.

#include "runtime/Data/StoreIndexes.h"

#include <filesystem>
#include <fstream>
#include <mutex>

#include "tests/runtime/Data/DataFiles.h"
#include "tests/runtime/Ranks/ThreadedRanks.h"

namespace qlora {
namespace {

/// Returns the bytes that this thread has read so far.
int64_t bytesRead() {
  std::ifstream file("/proc/thread-self/io");
  std::string word;
  int64_t bytes = 0;
  while (file >> word)
    if (word == "rchar:")
      file >> bytes;
  return bytes;
}

constexpr int64_t kRows = 1000, kLength = 256;
constexpr int64_t kFileBytes = 2 * kRows * kLength * 4;

std::string writeLong(const char *name, int32_t last = 1) {
  Ints ids(kRows * kLength, 1);
  ids.back() = last;
  std::vector<int64_t> offsets;
  for (int64_t row = 0; row <= kRows; ++row)
    offsets.push_back(row * kLength);
  return writeRows(name, ids, ids, offsets);
}

struct Opened {
  Status status;
  int64_t bytes = 0; ///< that the rank read
  std::string digest;
};

/// Opens one file on each rank.
std::vector<Opened> openOnRanks(const std::vector<std::string> &paths) {
  std::vector<Opened> all(paths.size());
  runJob(static_cast<int>(paths.size()), 1, [&](RankGroup &group) {
    Opened &own = all[static_cast<size_t>(group.rank())];
    const std::string &path = paths[static_cast<size_t>(group.rank())];
    auto store = TokenStore::open(path, path, {1, {kLength}, 10});
    ASSERT_TRUE(store.isOk()) << store.status().message();
    TokenStore *const stores[] = {&*store};
    const int64_t before = bytesRead();
    own.status = makeIndexes(stores, &group);
    own.bytes = bytesRead() - before;
    if (!own.status.isOk()) {
      own.status = group.end(own.status);
      return;
    }
    ContentHash hash;
    store->identify(hash);
    own.digest = hash.finish();
    EXPECT_EQ(store->labels(kRows - 1), kLength - 1);
    MicroBatch batch;
    batch.clear({1, kLength});
    EXPECT_TRUE(store->place(kRows - 1, 0, 0, 1, batch).isOk());
    EXPECT_EQ(batch.labelCount(), kLength - 1);
    EXPECT_TRUE(group.collectives().barrier().isOk());
  });
  return all;
}

TEST(StoreIndexes, OneRankOfAMachineReadsTheFile) {
  const std::string path = writeLong("shared");
  const std::vector<Opened> ranks = openOnRanks({path, path, path});
  EXPECT_GT(ranks[0].bytes, kFileBytes);
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    EXPECT_LT(ranks[rank].bytes, kFileBytes / 10);
    EXPECT_EQ(ranks[rank].digest, ranks[0].digest);
  }
}

TEST(StoreIndexes, ARankWithAnotherFileReadsItsOwn) {
  const std::string path = writeLong("first"), other = writeLong("other", 2),
                    copy = testing::TempDir() + "copy";
  std::filesystem::copy_file(path, copy,
                             std::filesystem::copy_options::overwrite_existing);
  const std::vector<Opened> ranks = openOnRanks({path, other, path, copy});
  EXPECT_GT(ranks[1].bytes, kFileBytes);
  EXPECT_NE(ranks[1].digest, ranks[0].digest);
  EXPECT_LT(ranks[2].bytes, kFileBytes / 10);
  EXPECT_EQ(ranks[2].digest, ranks[0].digest);
  EXPECT_GT(ranks[3].bytes, kFileBytes);
  EXPECT_EQ(ranks[3].digest, ranks[0].digest);
}

TEST(StoreIndexes, AnErrorEndsTheRanksThatWait) {
  const std::string path = writeLong("broken", 99);
  const std::vector<Opened> ranks = openOnRanks({path, path});
  EXPECT_NE(ranks[0].status.message().find(
                "row 999, position 255: token id 99 is outside"),
            std::string::npos)
      << ranks[0].status.message();
  EXPECT_EQ(ranks[1].status.message(), ranks[0].status.message());
}

} // namespace
} // namespace qlora
