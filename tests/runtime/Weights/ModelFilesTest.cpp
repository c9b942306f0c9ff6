// SPDX-License-Identifier: MIT

// Model folders with one file or several.

#include "runtime/Weights/ModelFiles.h"

#include "tests/runtime/TemporaryFolder.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

const std::string kInputs = QLORA_TEST_INPUTS;

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

void writeShard(const TemporaryFolder &folder, const std::string &file,
                const std::string &tensor) {
  const uint8_t byte = 1;
  const Status status =
      writeSafetensors(folder.path(file),
                       {{tensor, SafetensorsDtype::kU8, {1}, {&byte, 1}}}, {});
  ASSERT_TRUE(status.isOk()) << status.message();
}

std::string indexError(const std::string &index) {
  const TemporaryFolder folder;
  writeShard(folder, "one.safetensors", "a");
  folder.write("model.safetensors.index.json", index);
  auto files = ModelFiles::open(folder.path());
  return files.isOk() ? "" : files.status().message();
}

TEST(ModelFiles, OpensASingleFile) {
  auto files = ModelFiles::open(kInputs + "/goldens/llama-nf4/model");
  ASSERT_TRUE(files.isOk()) << files.status().message();
  EXPECT_EQ(files->all().size(), 1u);
  EXPECT_EQ(files->fileOf("lm_head.weight").value(), "model.safetensors");
  EXPECT_HAS(files->get("nope").status().message(), "no tensor 'nope'");
}

TEST(ModelFiles, FindsABaseModelByTheNamesOfTheWhole) {
  // The files use a base model's tensor names. The program's names have a
  // prefix, because its model contains the base model.
  auto files = ModelFiles::open(kInputs + "/goldens/llama-nf4/model");
  ASSERT_TRUE(files.isOk());
  const auto entry = files->find("whole.lm_head.weight");
  ASSERT_NE(entry.tensor, nullptr);
  EXPECT_EQ(entry.tensor->name, "lm_head.weight");
  EXPECT_EQ(*files->fileOf("whole.lm_head.weight"), "model.safetensors");
  EXPECT_EQ(files->find("a.whole.lm_head.weight").tensor, nullptr);
  EXPECT_EQ(files->find("whole.weight").tensor, nullptr);
}

TEST(ModelFiles, FindsATextModelInsideOfAnother) {
  for (const char *inFile : {"model.norm.weight", "norm.weight",
                             "language_model.model.norm.weight",
                             "model.language_model.norm.weight"})
    for (const char *asked :
         {"model.norm.weight", "model.language_model.norm.weight"}) {
      const std::vector<std::string> all = spellings(asked);
      EXPECT_NE(std::ranges::find(all, inFile), all.end())
          << asked << " as " << inFile;
    }
  EXPECT_EQ(spellings("lm_head.weight").at(2), "language_model.lm_head.weight");
}

TEST(ModelFiles, OpensShards) {
  auto files = ModelFiles::open(kInputs + "/goldens/llama3-tied/model");
  ASSERT_TRUE(files.isOk()) << files.status().message();
  EXPECT_EQ(files->all().size(), 9u);
  for (const std::string &name : files->tensorNames())
    EXPECT_NE(files->find(name).tensor, nullptr);
}

TEST(ModelFiles, RefusesBadIndexes) {
  EXPECT_EQ(indexError(R"({"weight_map":{"a":"one.safetensors"}})"), "");
  EXPECT_HAS(indexError("{"), "not a JSON object with a weight_map");
  EXPECT_HAS(indexError("{}"), "not a JSON object with a weight_map");
  EXPECT_HAS(indexError(R"({"weight_map":{"a":3}})"), "not a file name");
  EXPECT_HAS(indexError(R"({"weight_map":{"a":"../one.safetensors"}})"),
             "plain file name");
  EXPECT_HAS(indexError(R"({"weight_map":{"a":"x/one.safetensors"}})"),
             "plain file name");
  EXPECT_HAS(indexError(R"({"weight_map":{"a":"two.safetensors"}})"),
             "two.safetensors");
  EXPECT_HAS(indexError(R"({"weight_map":{"b":"one.safetensors"}})"),
             "places tensor 'b' in 'one.safetensors', which lacks it");
}

TEST(ModelFiles, FollowsLinksToShards) {
  const TemporaryFolder folder;
  const TemporaryFolder blobs;
  writeShard(blobs, "blob", "a");
  std::filesystem::create_symlink(blobs.path("blob"),
                                  folder.path("model.safetensors"));
  EXPECT_TRUE(ModelFiles::open(folder.path()).isOk());
}

TEST(ModelFiles, NamesWhatIsMissing) {
  const TemporaryFolder folder;
  EXPECT_HAS(ModelFiles::open(folder.path()).status().message(),
             "neither model.safetensors nor");
  EXPECT_HAS(ModelFiles::open(folder.path("x")).status().message(),
             "no model folder");
}

} // namespace
} // namespace qlora
