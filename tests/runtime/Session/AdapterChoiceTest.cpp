// SPDX-License-Identifier: MIT

// Names of adapters, and which adapters rows can choose.

#include "runtime/Session/AdapterChoice.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/Weights/Safetensors.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

class AdapterChoice : public testing::Test {
protected:
  void SetUp() override {
    folder = fs::path(testing::TempDir()) / "adapter_choice";
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }

  /// Writes tensors [rows, columns] by name, and returns readPlainAdapter().
  StatusOr<PlainAdapter>
  read(const std::vector<std::pair<std::string, std::pair<int64_t, int64_t>>>
           &tensors,
       const char *config = "{}") {
    static const std::vector<uint8_t> zeros(4096);
    std::ofstream(folder / "adapter_config.json") << config;
    std::vector<SafetensorsItem> items;
    for (const auto &[name, shape] : tensors)
      items.push_back({name,
                       SafetensorsDtype::kF32,
                       {shape.first, shape.second},
                       std::span(zeros).first(static_cast<size_t>(
                           4 * shape.first * shape.second))});
    EXPECT_TRUE(
        writeSafetensors((folder / "adapter_model.safetensors").string(),
                         std::move(items), {})
            .isOk());
    return readPlainAdapter(folder.string());
  }
  fs::path folder;
};

TEST_F(AdapterChoice, HasNames) {
  const std::string odd = (folder / "a=b").string();
  fs::create_directories(odd);
  const std::vector<std::string> texts = {"x=/some/dir", "/out/run/", "rel/y",
                                          odd, "z=a=b"};
  auto adapters = parseAdapters(texts);
  ASSERT_TRUE(adapters.isOk());
  const char *names[] = {"x", "run", "y", "a=b", "z"};
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ((*adapters)[i].name, names[i]);
  EXPECT_EQ(adapters->back().folder, "a=b");
  for (const char *wrong : {"=/x", "x="})
    EXPECT_FALSE(parseAdapters(std::vector<std::string>{wrong}).isOk());
  EXPECT_FALSE(parseAdapters(std::vector<std::string>{"x=a", "x=b"}).isOk());
}

TEST_F(AdapterChoice, PlainLoraHasRankAndTargets) {
  auto adapter = read({{"l.0.q_proj.lora_A.weight", {3, 8}},
                             {"l.0.q_proj.lora_B.weight", {6, 3}},
                             {"l.1.o_proj.lora_A.weight", {5, 6}},
                             {"l.1.o_proj.lora_B.weight", {8, 5}}});
  ASSERT_TRUE(adapter.isOk()) << adapter.status().message();
  EXPECT_EQ(adapter->rank, 5);
  EXPECT_EQ(adapter->targets, (std::set<std::string>{"o_proj", "q_proj"}));
}

TEST_F(AdapterChoice, OtherTensorsAreRefused) {
  EXPECT_FALSE(read({{"embed.lora_embedding_A", {3, 8}}}).isOk());
  EXPECT_FALSE(read({{"q_proj.lora_A.weight", {3, 8}}}).isOk());
  EXPECT_FALSE(read({{"q_proj.lora_A.weight", {3, 8}},
                     {"q_proj.lora_B.weight", {6, 2}}})
                   .isOk());
  EXPECT_FALSE(read({}).isOk());
}

} // namespace
} // namespace qlora
