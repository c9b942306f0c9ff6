// SPDX-License-Identifier: MIT

// Staged folders appear completely or not at all.

#include "runtime/Export/StagedFolder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/runtime/TemporaryFolder.h"

namespace qlora {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(StagedFolder, IsRenamedOrRemoved) {
  TemporaryFolder root;
  {
    auto folder = StagedFolder::create(root.path("a/out/"), false);
    ASSERT_TRUE(folder.isOk()) << folder.status().message();
    std::ofstream(folder->path() + "/file") << "x";
  }
  EXPECT_TRUE(fs::is_empty(root.path("a")));
  auto folder = StagedFolder::create(root.path("a/out/"), false);
  ASSERT_TRUE(folder.isOk());
  std::ofstream(folder->path() + "/file") << "x";
  ASSERT_TRUE(folder->commit().isOk());
  EXPECT_EQ(root.read("a/out/file"), "x");
}

TEST(StagedFolder, ReplacesOnlyExports) {
  TemporaryFolder root;
  fs::create_directory(root.path("out"));
  EXPECT_TRUE(StagedFolder::check(root.path("out"), false).isOk());
  root.write("out/mine", "x");
  EXPECT_THAT(StagedFolder::check(root.path("out"), false).message(),
              HasSubstr("is not empty"));
  EXPECT_THAT(StagedFolder::check(root.path("out"), true).message(),
              HasSubstr("no earlier export"));
  root.write("out/export.json", "{}");
  auto folder = StagedFolder::create(root.path("out"), true);
  ASSERT_TRUE(folder.isOk()) << folder.status().message();
  std::ofstream(folder->path() + "/new") << "y";
  ASSERT_TRUE(folder->commit().isOk());
  EXPECT_FALSE(fs::exists(root.path("out/mine")));
  EXPECT_EQ(root.read("out/new"), "y");
  EXPECT_EQ(root.fileCount(), 1U);
  root.write("file", "x");
  EXPECT_THAT(StagedFolder::check(root.path("file"), true).message(),
              HasSubstr("is a file"));
}

} // namespace
} // namespace qlora
