// SPDX-License-Identifier: MIT

// Files that appear complete or not at all, whichever call fails.

#include "runtime/Base/AtomicFile.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include "tests/runtime/Faults.h"
#include "tests/runtime/TemporaryFolder.h"

namespace qlora {
namespace {

TEST(AtomicFile, TakesItsPlaceAtTheEnd) {
  const TemporaryFolder folder;
  const std::string path = folder.write("x", "old");
  auto file = AtomicFile::create(path);
  ASSERT_TRUE(file.isOk()) << file.status().message();
  ASSERT_TRUE(file->write("ne").isOk());
  ASSERT_TRUE(file->write("w").isOk());
  EXPECT_EQ(folder.read("x"), "old");
  EXPECT_TRUE(file->isThere());
  ASSERT_TRUE(file->commit().isOk());
  EXPECT_EQ(folder.read("x"), "new");
  EXPECT_EQ(folder.fileCount(), 1u);
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  const mode_t mask = umask(0);
  umask(mask);
  EXPECT_EQ(info.st_mode & 0777, 0666 & ~mask);
}

TEST(AtomicFile, WhatIsNotCommittedIsRemoved) {
  const TemporaryFolder folder;
  folder.write("x", "old");
  {
    auto file = AtomicFile::create(folder.path("x"));
    ASSERT_TRUE(file.isOk());
    const AtomicFile moved = std::move(*file);
    EXPECT_EQ(folder.fileCount(), 2u);
  }
  EXPECT_EQ(folder.fileCount(), 1u);
  EXPECT_EQ(folder.read("x"), "old");
}

TEST(AtomicFile, AReserveHasItsBlocks) {
  const TemporaryFolder folder;
  const std::string path = folder.path("x");
  auto file = AtomicFile::create(path);
  ASSERT_TRUE(file.isOk());
  ASSERT_TRUE(file->reserve(300000).isOk());
  const uint8_t last = 7;
  ASSERT_TRUE(file->writeAt(299999, {&last, 1}).isOk());
  ASSERT_TRUE(file->commit().isOk());
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 300000);
  EXPECT_GE(info.st_blocks * 512, 300000);
}

TEST(AtomicFile, AnEmptyFileHasNoBlocks) {
  const TemporaryFolder folder;
  for (const auto how :
       {AtomicFile::Reserve::kEach, AtomicFile::Reserve::kWhereItCan}) {
    auto file = AtomicFile::create(folder.path("x"));
    ASSERT_TRUE(file.isOk());
    EXPECT_EQ(file->reserve(0, how).message(), "");
    EXPECT_EQ(file->commit().message(), "");
    EXPECT_EQ(folder.read("x"), "");
  }
}

static Status replace(const std::string &path) {
  QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  QLORA_RETURN_IF_ERROR(file.reserve(6));
  for (const char *text : {"an", "ew", "er"})
    QLORA_RETURN_IF_ERROR(file.write(text));
  return file.commit();
}

/// If a call fails, the folder has only the old file, unchanged. The exceptions
/// are the last calls: they open and flush the folder, and their errors are
/// ignored. Then the folder has only the new file.
TEST(AtomicFile, AFailingCallLeavesWhatWasThere) {
  for (const int error : {ENOSPC, EDQUOT, EFBIG, EIO, EROFS, EACCES}) {
    const bool isFull = error == ENOSPC || error == EDQUOT || error == EFBIG;
    const TemporaryFolder folder;
    // sweep.call() ends with this text if the call is on the folder itself.
    const std::string inFolder =
        std::filesystem::path(folder.path()).filename().string() + "'";
    FaultSweep sweep(
        {.calls = kChanges, .error = error, .below = folder.path()});
    while (sweep.next()) {
      const std::string path = folder.write("x", "old");
      const Status status = sweep.run([&] { return replace(path); });
      EXPECT_EQ(folder.fileCount(), 1u) << sweep.call();
      const bool isReplaced =
          !sweep.hasFailed() || sweep.call().ends_with(inFolder);
      EXPECT_EQ(status.isOk(), isReplaced) << sweep.call();
      EXPECT_EQ(folder.read("x"), isReplaced ? "anewer" : "old")
          << sweep.call();
      if (status.isOk())
        continue;
      EXPECT_EQ(status.code(), isFull || sweep.name() == "posix_fallocate"
                                   ? StatusCode::kResourceExhausted
                                   : StatusCode::kUnavailable)
          << sweep.call();
      EXPECT_NE(status.message().find("'" + path + "': " + strerror(error)),
                std::string::npos)
          << status.message();
    }
    EXPECT_EQ(sweep.failures(), 9);
  }
}

TEST(AtomicFile, ShortWritesAndSignalsDoNotMatter) {
  const TemporaryFolder folder;
  const std::string path = folder.path("x");
  for (const FaultPlan::How how :
       {FaultPlan::How::kShort, FaultPlan::How::kOnce}) {
    FaultSweep sweep({.calls = kChanges,
                      .error = how == FaultPlan::How::kOnce ? EINTR : 0,
                      .how = how,
                      .below = folder.path()});
    while (sweep.next()) {
      EXPECT_EQ(sweep.run([&] { return replace(path); }).message(), "");
      EXPECT_EQ(folder.read("x"), "anewer");
    }
    EXPECT_GE(sweep.failures(), 3);
  }
}

TEST(AtomicFile, AFolderThatIsNotThereIsSaid) {
  const TemporaryFolder folder;
  const Status status = AtomicFile::create(folder.path("a/x")).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("No such file or directory"),
            std::string::npos);
}

} // namespace
} // namespace qlora
