// SPDX-License-Identifier: MIT

// Manifests: every change in a folder is found, and the message names the file.

#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/Base/Manifest.h"
#include "tests/runtime/TemporaryFolder.h"

namespace qlora {
namespace {

class Manifest : public testing::Test {
protected:
  void SetUp() override {
    folder.write("a.bin", std::string(3000, 'x'));
    std::filesystem::create_directories(folder.path("sub"));
    folder.write("sub/b.txt", "text");
    ASSERT_TRUE(writeManifest(folder.path(), {{"step", 7}}).isOk());
  }
  std::string verify() {
    const auto facts = verifyManifest(folder.path());
    return facts.isOk() ? "whole" : facts.status().message();
  }

  TemporaryFolder folder;
};

TEST(Sha256, IsTheStandards) { // FIPS 180-4, appendix B.1
  EXPECT_EQ(sha256("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410"
            "ff61f20015ad");
}

TEST_F(Manifest, GivesTheFactsOfAWholeFolder) {
  const auto facts = verifyManifest(folder.path());
  ASSERT_TRUE(facts.isOk()) << facts.status().message();
  EXPECT_EQ(facts.value().at("step"), 7);
}

TEST_F(Manifest, NamesWhatIsNotAsItWas) {
  const std::string manifest = folder.read("MANIFEST.json");
  folder.write("sub/b.txt", "next");
  EXPECT_EQ(verify(), "'" + folder.path("sub/b.txt") +
                          "' is damaged: its SHA-256 does not match");
  folder.write("sub/b.txt", "tex");
  EXPECT_EQ(verify(), "'" + folder.path("sub/b.txt") +
                          "' is damaged: it has 3 bytes instead of 4");
  std::filesystem::remove(folder.path("sub/b.txt"));
  EXPECT_EQ(verify(), "'" + folder.path("sub/b.txt") + "' is missing");
  folder.write("sub/b.txt", "text");
  EXPECT_EQ(verify(), "whole");
  for (size_t i = 0; i < manifest.size(); ++i) {
    std::string damaged = manifest;
    damaged[i] ^= 1;
    folder.write("MANIFEST.json", damaged);
    EXPECT_EQ(verify(), "'" + folder.path("MANIFEST.json") + "' is damaged")
        << i;
  }
  std::filesystem::remove(folder.path("MANIFEST.json"));
  EXPECT_EQ(verifyManifest(folder.path()).status().code(),
            StatusCode::kNotFound);
}

TEST_F(Manifest, DoesNotMindOtherFiles) {
  folder.write(".nfs0000000000c1a2b300000001", "removed while it was open");
  folder.write("note.txt", "the best one so far");
  std::filesystem::create_symlink("nowhere", folder.path("sub/link"));
  EXPECT_EQ(verify(), "whole");
  std::filesystem::remove(folder.path("a.bin"));
  EXPECT_EQ(verify(), "'" + folder.path("a.bin") + "' is missing");
}

} // namespace
} // namespace qlora
