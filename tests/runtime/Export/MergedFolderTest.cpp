// SPDX-License-Identifier: MIT

// Folders of merged models: shards, configuration, tokenizer.

#include "runtime/Export/MergedFolder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "tests/runtime/Export/SmallModel.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

class MergedFolderTest : public SmallModel {
protected:
  void SetUp() override {
    SmallModel::SetUp();
    fs::create_directories(folder.path("out"));
    addBase("a.weight", {4, 4}, std::vector<float>(16, 1));
    addBase("b.weight", {4, 4}, std::vector<float>(16, 2));
    addBase("c.weight", {2}, {3, 4});
    base.addBytes("ids", {3}, SafetensorsDtype::kU8, {5, 6, 7});
    addAdapter("a.lora_A.weight", {1, 4}, {1, 1, 1, 1});
    addAdapter("a.lora_B.weight", {4, 1}, {1, 2, 3, 0.001f});
  }
  Status write(const MergedFolderRequest &request, const char *config = "{}") {
    auto model = merge(R"({"r": 1, "lora_alpha": 1})", {}, config);
    if (!model.isOk())
      return model.status();
    return writeMergedFolder(*model, folder.path("out"), request);
  }
  std::vector<float> read(const std::string &name) {
    auto files = ModelFiles::open(folder.path("out"));
    EXPECT_TRUE(files.isOk()) << files.status().message();
    const auto entry = files->find(name);
    EXPECT_NE(entry.tensor, nullptr) << name;
    std::vector<uint8_t> bytes(entry.tensor->byteCount());
    EXPECT_TRUE(entry.file->read(*entry.tensor, 0, bytes).isOk());
    std::vector<float> values(
        static_cast<size_t>(entry.tensor->elementCount()));
    weightsToFloat(*toAbiDtype(entry.tensor->dtype), bytes.data(),
                   entry.tensor->elementCount(), values.data());
    return values;
  }
};

TEST_F(MergedFolderTest, WritesShardsAndTheirIndex) {
  // 32 bytes each for a and b, 4 for c and 3 for ids.
  ASSERT_TRUE(write({{}, 40, "", {}}).isOk());
  EXPECT_TRUE(fs::exists(folder.path("out/model-00001-of-00002.safetensors")));
  const auto index = nlohmann::json::parse(
      folder.read("out/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 71);
  EXPECT_EQ(index["weight_map"]["a.weight"],
            "model-00001-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"]["ids"], "model-00002-of-00002.safetensors");
  EXPECT_EQ(read("a.weight")[0], 2);
  EXPECT_EQ(read("a.weight")[15], 1); // 1.001 is rounded to bf16
  EXPECT_EQ(read("b.weight")[0], 2);
  EXPECT_THAT(read("c.weight"), ElementsAre(3, 4));
}

TEST_F(MergedFolderTest, WritesOneFileOfAnotherType) {
  ASSERT_TRUE(write({SafetensorsDtype::kF32, 1 << 20, "", {}}).isOk());
  EXPECT_TRUE(fs::exists(folder.path("out/model.safetensors")));
  EXPECT_FALSE(fs::exists(folder.path("out/model.safetensors.index.json")));
  EXPECT_FLOAT_EQ(read("a.weight")[15], 1.001f);
}

TEST_F(MergedFolderTest, RefusesValuesThatTheTypeCannotHold) {
  addBase("d.weight", {1}, {70000});
  const Status status = write({SafetensorsDtype::kF16, 1 << 20, "", {}});
  EXPECT_THAT(status.message(), HasSubstr("'d.weight'"));
  EXPECT_THAT(status.message(), HasSubstr("--outtype bf16"));
}

TEST_F(MergedFolderTest, ChangesConfigAndCopiesTheTokenizer) {
  folder.write("base/tokenizer.json", "base");
  folder.write("base/generation_config.json", "generation");
  folder.write("base/chat_template.jinja", "old");
  folder.write("adapter/chat_template.jinja", "new");
  ASSERT_TRUE(write({{}, 1 << 20, folder.path("adapter"), {}},
                    R"({"quantization_config": {"bits": 4}, "x": 1,
                        "text_config": {"dtype": "float32"}})")
                  .isOk());
  const auto config = nlohmann::json::parse(folder.read("out/config.json"));
  EXPECT_FALSE(config.contains("quantization_config"));
  EXPECT_EQ(config["x"], 1);
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  EXPECT_EQ(config["text_config"]["dtype"], "bfloat16");
  EXPECT_EQ(folder.read("out/tokenizer.json"), "base");
  EXPECT_EQ(folder.read("out/generation_config.json"), "generation");
  EXPECT_EQ(folder.read("out/chat_template.jinja"), "new");
}

TEST_F(MergedFolderTest, BytesDoNotDependOnTheWindow) {
  // More elements than the writer reads at a time, with an odd row length.
  constexpr int64_t kRows = 1001, kColumns = 523;
  std::vector<float> values(kRows * kColumns);
  std::iota(values.begin(), values.end(), 0.0f);
  base.add("large.weight", {kRows, kColumns}, values);
  std::vector<float> a(kColumns), b(kRows);
  std::iota(a.begin(), a.end(), 1.0f);
  std::iota(b.begin(), b.end(), 1.0f);
  addAdapter("large.lora_A.weight", {1, kColumns}, a);
  addAdapter("large.lora_B.weight", {kRows, 1}, b);
  ASSERT_TRUE(write({SafetensorsDtype::kF32, 1 << 30, "", {}}).isOk());
  const std::vector<float> merged = read("large.weight");
  for (size_t i = 0; i < merged.size(); ++i)
    ASSERT_EQ(merged[i], values[i] + a[i % kColumns] * b[i / kColumns]) << i;
}

} // namespace
} // namespace qlora
