// SPDX-License-Identifier: MIT

// Files of quantized bases are complete or rejected, for any damage and with
// several concurrent writers.

#include "runtime/Weights/QuantizedBaseFile.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/StopSignal.h"
#include "runtime/Device/FrozenArena.h"
#include "runtime/Weights/QuantizedBaseFile.h"
#include "tests/runtime/TemporaryFolder.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kNoLimit = uint64_t{1} << 40;
const std::string kKey(ContentHash::kDigits, 'a');

/// Returns an arena of three chunks; the last chunk is partial and does not
/// fill a page.
std::vector<uint8_t> makeArena(uint8_t seed,
                               size_t bytes = 2 * kBaseChunk + 12345) {
  std::vector<uint8_t> arena(bytes);
  uint64_t state = seed;
  for (uint8_t &byte : arena) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<uint8_t>(state >> 56);
  }
  return arena;
}

Status keep(const QuantizedBaseCache &cache, const std::string &key,
            const std::vector<uint8_t> &arena) {
  QLORA_ASSIGN_OR_RETURN(auto writer, cache.write(key, arena));
  return writer->finish();
}

class BaseCacheTest : public testing::Test {
protected:
  /// Returns "" if the cached base has these bytes, "none" if none is cached,
  /// or the error.
  std::string look(const std::string &key, const std::vector<uint8_t> &arena) {
    auto file = cache.open(key, arena.size());
    if (!file.isOk())
      return file.status().message();
    if (!file->isOpen())
      return "none";
    auto mapped = FrozenArena::filled(file->get(), arena.size());
    if (!mapped.isOk())
      return mapped.status().message();
    EXPECT_TRUE(mapped->isFilled());
    return std::equal(arena.begin(), arena.end(), mapped->bytes().begin())
               ? ""
               : "other bytes";
  }
  bool hasPart() const {
    for (const auto &entry : fs::directory_iterator(folder.path()))
      if (entry.path().string().find(".part.") != std::string::npos)
        return true;
    return false;
  }

  const TemporaryFolder folder;
  const QuantizedBaseCache cache{folder.path(), kNoLimit};
  const std::vector<uint8_t> arena = makeArena(1);
};

TEST_F(BaseCacheTest, KeepsTheArena) {
  EXPECT_EQ(look(kKey, arena), "none");
  Status kept = keep(cache, kKey, arena);
  ASSERT_TRUE(kept.isOk()) << kept.message();
  EXPECT_EQ(look(kKey, arena), "");
  EXPECT_EQ(fs::file_size(cache.fileOf(kKey)), baseFileBytes(arena.size()));
  EXPECT_EQ(folder.fileCount(), 1u);
  EXPECT_EQ(look(std::string(ContentHash::kDigits, 'b'), arena), "none");
}

TEST_F(BaseCacheTest, AnyDamageIsSeen) {
  ASSERT_TRUE(keep(cache, kKey, arena).isOk());
  const std::string sound = folder.read(kKey + ".base");
  const auto rewrite = [&](const std::string &text) {
    folder.write(kKey + ".base", text);
    auto file = cache.open(kKey, arena.size());
    EXPECT_EQ(file.status().code(), StatusCode::kDataLoss);
    EXPECT_NE(file.status().message().find(kKey), std::string::npos);
  };
  const size_t trailer = baseTrailerOffset(arena.size());
  for (size_t at :
       {size_t{0}, size_t{kBaseChunk}, arena.size() - 1, trailer, trailer + 8,
        trailer + 40, trailer + 64, sound.size() - 1}) {
    std::string damaged = sound;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    rewrite(damaged);
  }
  std::string swapped = sound;
  std::swap_ranges(swapped.begin(), swapped.begin() + 64, swapped.begin() + 64);
  rewrite(swapped);
  rewrite(sound.substr(0, sound.size() - 1));
  rewrite(sound.substr(0, arena.size()));
  rewrite(sound + "x");
  rewrite("");
  // Storing the base again repairs the file.
  ASSERT_TRUE(keep(cache, kKey, arena).isOk());
  EXPECT_EQ(look(kKey, arena), "");
}

TEST_F(BaseCacheTest, AFileOfAnotherBaseIsRefused) {
  ASSERT_TRUE(keep(cache, kKey, arena).isOk());
  const std::string other(ContentHash::kDigits, 'b');
  fs::rename(cache.fileOf(kKey), cache.fileOf(other));
  EXPECT_NE(look(other, arena).find("to another base"), std::string::npos);
  auto shorter = cache.open(other, arena.size() - 1);
  EXPECT_EQ(shorter.status().code(), StatusCode::kDataLoss);
}

TEST_F(BaseCacheTest, AnEndWithoutFinishLeavesNoPart) {
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(cache.write(kKey, arena).isOk());
    EXPECT_FALSE(hasPart());
    const std::string found = look(kKey, arena);
    EXPECT_TRUE(found.empty() || found == "none") << found;
  }
}

/// Runs in a separate process, which receives the signal.
TEST_F(BaseCacheTest, ASignalToStopEndsTheWritingAndLeavesNothing) {
  const std::vector<uint8_t> large(64 * kBaseChunk);
  const pid_t run = fork();
  if (run == 0) {
    installStopSignals();
    auto writer = cache.write(kKey, large);
    raise(SIGTERM);
    _exit(writer.isOk() && (*writer)->finish().isOk() ? 0 : 1);
  }
  int status = 0;
  waitpid(run, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(look(kKey, large), "none");
}

TEST_F(BaseCacheTest, AFolderThatCannotBeMadeIsSaid) {
  const QuantizedBaseCache other(folder.write("file", "") + "/bases", kNoLimit);
  const Status status = keep(other, kKey, arena);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("cannot create"), std::string::npos);
}

TEST_F(BaseCacheTest, SeveralWritersGiveOneWholeFile) {
  std::atomic<int> writing = 4;
  std::vector<std::thread> threads;
  std::vector<Status> results(4);
  for (size_t i = 0; i < results.size(); ++i)
    threads.emplace_back([&, i] {
      results[i] = keep(cache, kKey, arena);
      --writing;
    });
  int found = 0;
  do {
    const std::string seen = look(kKey, arena);
    EXPECT_TRUE(seen.empty() || seen == "none") << seen;
    found += seen.empty();
  } while (writing > 0);
  for (std::thread &thread : threads)
    thread.join();
  for (const Status &result : results)
    EXPECT_TRUE(result.isOk()) << result.message();
  EXPECT_EQ(look(kKey, arena), "");
  EXPECT_EQ(folder.fileCount(), 1u);
  RecordProperty("found", found);
}

void setAge(const std::string &path, std::chrono::hours age) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

TEST_F(BaseCacheTest, TheLeastRecentlyUsedMakeRoom) {
  const uint64_t bytes = baseFileBytes(arena.size());
  const QuantizedBaseCache two(folder.path(), 2 * bytes + 100);
  const std::string keys[] = {
      std::string(ContentHash::kDigits, '1'), std::string(64, '2'),
      std::string(ContentHash::kDigits, '3'), std::string(64, '4')};
  for (int i : {0, 1}) {
    ASSERT_TRUE(keep(two, keys[i], arena).isOk());
    setAge(two.fileOf(keys[i]), std::chrono::hours(10 - i));
  }
  EXPECT_EQ(look(keys[0], arena), ""); // now the newest file
  ASSERT_TRUE(keep(two, keys[2], arena).isOk());
  EXPECT_EQ(look(keys[0], arena), "");
  EXPECT_EQ(look(keys[1], arena), "none");
  EXPECT_EQ(look(keys[2], arena), "");

  const QuantizedBaseCache small(folder.path(), bytes - 1);
  const Status status = keep(small, keys[3], arena);
  EXPECT_NE(status.message().find("--base-cache-limit"), std::string::npos)
      << status.message();
  EXPECT_EQ(look(keys[2], arena), "");
}

TEST_F(BaseCacheTest, WhatAKilledRunHasLeftGoesADayLater) {
  const std::string old = folder.write(kKey + ".base.part.aaaaaa", "x");
  const std::string young = folder.write(kKey + ".base.part.bbbbbb", "x");
  const std::string stranger = folder.write("notes.txt", "x");
  setAge(old, std::chrono::hours(25));
  setAge(stranger, std::chrono::hours(25));
  ASSERT_TRUE(keep(cache, kKey, arena).isOk());
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young));
  EXPECT_TRUE(fs::exists(stranger));
}

} // namespace
} // namespace qlora
