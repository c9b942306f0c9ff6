// SPDX-License-Identifier: MIT

// Listing folders, and folders that cannot be read to the end.

#include "runtime/Base/UserFiles.h"

#include <gtest/gtest.h>

#include "tests/runtime/Faults.h"
#include "tests/runtime/TemporaryFolder.h"

using namespace qlora;

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

TEST(ListFolder, AFailingCallIsAnError) {
  TemporaryFolder folder;
  for (const char *name : {"a", "b", "c"})
    folder.write(name, "");
  FaultSweep sweep({.calls = kReads, .below = folder.path()});
  while (sweep.next()) {
    const Status status =
        sweep.run([&] { return listFolder(folder.path()).status(); });
    EXPECT_EQ(status.message(), sweep.hasFailed() ? "Input/output error" : "")
        << sweep.call();
  }
  EXPECT_GT(sweep.failures(), 5); // entries include "." and ".."
}
