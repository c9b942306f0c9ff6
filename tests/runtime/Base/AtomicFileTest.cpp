// SPDX-License-Identifier: MIT

// Files that appear complete or not at all, whatever fails before.

#include "runtime/Base/AtomicFile.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "tests/runtime/TemporaryFolder.h"

/// Whether the next close reports a failed write.
static bool losesOnClose = false;

/// Replaces the system's close.
extern "C" int close(int file) {
  const int result = static_cast<int>(syscall(SYS_close, file));
  if (!losesOnClose)
    return result;
  losesOnClose = false;
  errno = EIO;
  return -1;
}

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

/// The system refuses every file of more than 4,096 bytes.
TEST(AtomicFile, AFullDiskLeavesWhatWasThere) {
  const TemporaryFolder folder;
  const std::string path = folder.write("x", "old");
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto file = AtomicFile::create(path);
    const Status reserved = file->reserve(4097);
    const Status written = file->write(std::string(4097, 'x'));
    const bool isSaid =
        reserved.code() == StatusCode::kResourceExhausted &&
        reserved.message() ==
            "cannot reserve 4097 bytes for '" + path + "': File too large" &&
        written.code() == StatusCode::kResourceExhausted &&
        written.message() == "cannot write '" + path +
                                 "': File too large; what was there before is "
                                 "unchanged";
    { AtomicFile ended = std::move(*file); }
    _exit(isSaid ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(folder.read("x"), "old");
  EXPECT_EQ(folder.fileCount(), 1u);
}

TEST(AtomicFile, AWriteThatFailsInTheEndLeavesWhatWasThere) {
  const TemporaryFolder folder;
  const std::string path = folder.write("x", "old");
  auto file = AtomicFile::create(path);
  ASSERT_TRUE(file.isOk()) << file.status().message();
  ASSERT_TRUE(file->write("new").isOk());
  losesOnClose = true;
  EXPECT_EQ(file->commit().message(),
            "cannot write '" + path +
                "': Input/output error; what was there before is unchanged");
  EXPECT_EQ(folder.read("x"), "old");
  EXPECT_EQ(folder.fileCount(), 1u);
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
