// SPDX-License-Identifier: MIT

// The cache of compiled kernels finds stored kernels and ignores damaged files.

#include "compiler/Codegen/KernelCache.h"
#include "compiler/Codegen/Tools.h"
#include "runtime/Base/UserFiles.h"

#include "tests/runtime/TemporaryFolder.h"

using namespace qlora;

class KernelCacheTest : public testing::Test {
protected:
  std::string fileOf(const std::string &key) const {
    return folder.path("new/" + key + ".o");
  }

  TemporaryFolder folder;
};

TEST_F(KernelCacheTest, FindsWhatWasStored) {
  KernelCache cache(folder.path("new"));
  std::string key = KernelCache::key("text");
  EXPECT_EQ(key.size(), 32u);
  EXPECT_NE(key, KernelCache::key("text "));
  EXPECT_FALSE(cache.find(key));
  cache.store(key, std::string("\0object", 7));
  EXPECT_EQ(cache.find(key), std::string("\0object", 7));
}

TEST_F(KernelCacheTest, IgnoresDamage) {
  KernelCache cache(folder.path("new"));
  std::string key = KernelCache::key("text");
  cache.store(key, "object");
  std::string whole = *readWholeFile(fileOf(key));
  for (size_t bytes : {whole.size() - 1, size_t(10), size_t(0)}) {
    std::filesystem::resize_file(fileOf(key), bytes);
    EXPECT_FALSE(cache.find(key)) << bytes;
  }
  whole.back() ^= 1;
  ASSERT_TRUE(writeFile(fileOf(key), whole).isOk());
  EXPECT_FALSE(cache.find(key));
  cache.store(key, "object");
  EXPECT_EQ(cache.find(key), "object");
}

TEST_F(KernelCacheTest, CannotBeWrittenWithoutHarm) {
  KernelCache cache(folder.write("file", "not a folder"));
  cache.store("key", "object");
  EXPECT_FALSE(cache.find("key"));
  KernelCache off("");
  off.store("key", "object");
  EXPECT_FALSE(off.find("key"));
}
