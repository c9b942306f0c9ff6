// SPDX-License-Identifier: MIT

// Listing folders, and folders that cannot be read to the end.

#include "runtime/Base/UserFiles.h"

#include <gtest/gtest.h>

#include <dirent.h>
#include <dlfcn.h>

#include <cerrno>

#include "tests/runtime/TemporaryFolder.h"

using namespace qlora;

/// Entries before the disk fails; negative: it does not fail.
static int entriesLeft = -1;

/// Replaces the C library's function, which libstdc++ calls by either name.
extern "C" dirent64 *readdir64(DIR *folder) {
  if (entriesLeft == 0) {
    errno = EIO;
    return nullptr;
  }
  entriesLeft -= entriesLeft > 0;
  using Function = dirent64 *(*)(DIR *);
  static const auto next =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "readdir64"));
  return next(folder);
}
extern "C" dirent *readdir(DIR *folder) {
  static_assert(sizeof(dirent) == sizeof(dirent64));
  return reinterpret_cast<dirent *>(readdir64(folder));
}

TEST(ListFolder, IsSorted) {
  TemporaryFolder folder;
  EXPECT_TRUE(listFolder(folder.path()).value().empty());
  for (const char *name : {"c", "a", "d", "b"})
    folder.write(name, "");
  const auto files = listFolder(folder.path());
  ASSERT_TRUE(files.isOk());
  ASSERT_EQ(files.value().size(), 4u);
  EXPECT_EQ(files.value().front(), folder.path("a"));
  EXPECT_TRUE(std::is_sorted(files.value().begin(), files.value().end()));
}

TEST(ListFolder, ErrorsAreTheSystemsReason) {
  TemporaryFolder folder;
  const Status missing = listFolder(folder.path("none")).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.message(), "No such file or directory");
  const Status file = listFolder(folder.write("file", "")).status();
  EXPECT_EQ(file.code(), StatusCode::kUnavailable);
  EXPECT_EQ(file.message(), "Not a directory");
}

TEST(ListFolder, ADiskThatBreaksOnTheWayIsAnErrorToo) {
  TemporaryFolder folder;
  for (const char *name : {"a", "b", "c"})
    folder.write(name, "");
  for (const int readable : {0, 3}) { // these include "." and ".."
    entriesLeft = readable;
    const Status status = listFolder(folder.path()).status();
    entriesLeft = -1;
    EXPECT_EQ(status.message(), "Input/output error") << readable;
  }
}
