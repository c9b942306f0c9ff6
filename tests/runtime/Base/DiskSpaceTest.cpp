// SPDX-License-Identifier: MIT

// Space that is set aside, or said to be missing.

#include "runtime/Base/DiskSpace.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/runtime/TemporaryFolder.h"

using namespace qlora;

TEST(DiskSpace, SaysWhatIsMissing) {
  TemporaryFolder folder;
  EXPECT_TRUE(checkFreeSpace(folder.path(), 1).isOk());
  struct statvfs disk {};
  ASSERT_EQ(statvfs(folder.path().c_str(), &disk), 0);
  const uint64_t size = uint64_t{disk.f_blocks} * disk.f_frsize;
  const Status status = checkFreeSpace(folder.path(), 2 * size);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  unsigned long long missing = 0, all = 0;
  const std::string start = "the disk of '" + folder.path() + "' is too full: ";
  ASSERT_EQ(status.message().compare(0, start.size(), start), 0);
  ASSERT_EQ(std::sscanf(status.message().c_str() + start.size(),
                        "%llu of %llu bytes are missing", &missing, &all),
            2);
  // What the bytes are for, and other disks, are not for this layer to say.
  EXPECT_TRUE(status.message().ends_with(" bytes are missing"));
  EXPECT_EQ(all, 2 * size);
  // At least what would be missing on an empty disk of this size.
  EXPECT_GE(missing, size);
  EXPECT_LE(missing, 2 * size);
}

TEST(DiskSpace, AReservedFileHasItsBlocks) {
  TemporaryFolder folder;
  const std::string path = folder.path("reserve");
  ASSERT_TRUE(reserveFile(path, 300000).isOk());
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 300000);
  EXPECT_GE(info.st_blocks * 512, 300000);
  EXPECT_FALSE(reserveFile(path, 1).isOk()); // it is somebody's
}

TEST(DiskSpace, ARefusedReserveIsAnError) {
  TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    // The system then refuses every file of more than 4,096 bytes.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    const Status status = reserveFile(folder.path("large"), 4097);
    const bool isSaid = status.code() == StatusCode::kResourceExhausted &&
                        status.message() == "cannot reserve 4097 bytes for '" +
                                                folder.path("large") +
                                                "': File too large";
    _exit(isSaid && reserveFile(folder.path("small"), 4096).isOk() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}
