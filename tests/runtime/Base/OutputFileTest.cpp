// SPDX-License-Identifier: MIT

// The message about missing disk space.

#include "runtime/Base/UserFiles.h"

#include <gtest/gtest.h>

#include <sys/statvfs.h>

#include "tests/runtime/TemporaryFolder.h"

using namespace qlora;

TEST(OutputFile, SaysWhatIsMissing) {
  TemporaryFolder folder;
  EXPECT_TRUE(checkFreeSpace(folder.path(), 1).isOk());
  struct statvfs disk {};
  ASSERT_EQ(statvfs(folder.path().c_str(), &disk), 0);
  const uint64_t size = uint64_t{disk.f_blocks} * disk.f_frsize;
  const Status status = checkFreeSpace(folder.path(), 2 * size);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  unsigned long long missing = 0, all = 0;
  const std::string start = "the disk of '" + folder.path() + "' lacks ";
  ASSERT_EQ(status.message().compare(0, start.size(), start), 0);
  ASSERT_EQ(std::sscanf(status.message().c_str() + start.size(),
                        "%llu of %llu bytes", &missing, &all),
            2);
  // This layer does not know what the bytes are for, so its message suggests no
  // other disks.
  EXPECT_TRUE(status.message().ends_with(" bytes; free some space"));
  EXPECT_EQ(all, 2 * size);
  // Even an empty disk of this size would lack at least `size` bytes.
  EXPECT_GE(missing, size);
  EXPECT_LE(missing, 2 * size);
}
