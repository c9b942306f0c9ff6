// SPDX-License-Identifier: MIT

// Device maps in Accelerate's format, and the resulting pipelines.

#include "runtime/Options/DeviceMap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

using namespace qlora;
using testing::HasSubstr;

static Options
optionsOf(std::vector<std::pair<const char *, std::string>> set) {
  Options options;
  for (const auto &[name, text] : set) {
    const OptionSetting setting{findOption(optionTable(), name), text,
                                "--" + std::string(name)};
    EXPECT_TRUE(options.applySettings({&setting, 1}).isOk()) << text;
  }
  return options;
}

static std::string fileOf(const std::string &text) {
  const std::string path = testing::TempDir() + "device_map.json";
  std::ofstream(path) << text;
  return path;
}

static std::string errorOf(const std::string &text) {
  const auto mapped = mappedMesh(Options(), fileOf(text), 1);
  EXPECT_FALSE(mapped.isOk()) << text;
  return mapped.status().message();
}

TEST(DeviceMap, WithoutOneTheMeshIsWhatParallelSays) {
  const auto mapped = mappedMesh(optionsOf({{"parallel", "fsdp=4"}}), "", 8);
  ASSERT_TRUE(mapped.isOk());
  EXPECT_EQ(mapped->mesh.text(), "fsdp=4");
  EXPECT_EQ(mapped->map, "balanced");
}

TEST(DeviceMap, WordsMakeAStageOfEachRankThatIsLeft) {
  const auto meshOf = [](const char *parallel, int64_t ranks) {
    return mappedMesh(optionsOf({{"parallel", parallel}}), "auto", ranks)
        ->mesh.text();
  };
  EXPECT_EQ(meshOf("none", 4), "pp=4");
  EXPECT_EQ(meshOf("none", 1), "none");
  EXPECT_EQ(meshOf("pp=2", 8), "pp=2");
  EXPECT_EQ(meshOf("fsdp=2", 8), "fsdp=2,pp=4");
  EXPECT_EQ(meshOf("zero2=2,tp=2", 8), "zero2=2,tp=2,pp=2");
  const auto uneven =
      mappedMesh(optionsOf({{"parallel", "fsdp=4"}}), "auto", 6);
  EXPECT_THAT(uneven.status().message(),
              HasSubstr("6 ranks are not a multiple of the 4"));
}

TEST(DeviceMap, OneAfterTheOtherNeedsToKnowHowMuchEachHas) {
  EXPECT_THAT(mappedMesh(Options(), "sequential", 2).status().message(),
              HasSubstr("add --memory-limit"));
  EXPECT_TRUE(mappedMesh(Options(), "sequential", 1).isOk());
  const Options options = optionsOf({{"memory_limit", "24GiB"}});
  EXPECT_EQ(mappedMesh(options, "sequential", 2)->map, "sequential");
}

TEST(DeviceMap, AFileSaysHowManyThereAre) {
  const std::string text =
      R"( {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers": 1,
          "lm_head": 2})";
  const auto mapped = mappedMesh(Options(), fileOf(text), 1);
  ASSERT_TRUE(mapped.isOk()) << mapped.status().message();
  EXPECT_EQ(mapped->mesh.text(), "pp=3");
  // The compiler's form is compact JSON, whatever whitespace the file has.
  EXPECT_EQ(mapped->map,
            R"({"lm_head":2,"model.embed_tokens":0,"model.layers":1,)"
            R"("model.layers.0":0})");
  const auto one = mappedMesh(Options(), fileOf(R"({"": 0})"), 1);
  EXPECT_EQ(one->mesh.text(), "none");
  EXPECT_EQ(one->map, "balanced");
}

TEST(DeviceMap, MistakesAreToldApart) {
  EXPECT_THAT(
      errorOf(R"({"a": 0, "b": "cpu"})"),
      HasSubstr("places 'b' on the cpu, but every layer runs on a GPU; use "
                "--offload base"));
  EXPECT_THAT(errorOf(R"({"a": "cuda:0"})"),
              HasSubstr("the device of 'a' is \"cuda:0\"; use the number"));
  EXPECT_THAT(errorOf(R"({"a": -1})"), HasSubstr("the device of 'a' is -1"));
  EXPECT_THAT(errorOf(R"({"a": 0, "b": 2})"),
              HasSubstr("uses GPU 2, but only 2 different GPUs; number them"));
  for (const char *text : {"", "{}", "[0, 1]", "{\"a\": 0", "3"})
    EXPECT_THAT(errorOf(text), HasSubstr("is not a device map"));
  const auto other = mappedMesh(optionsOf({{"parallel", "pp=4"}}),
                                fileOf(R"({"a": 0, "b": 1})"), 4);
  EXPECT_THAT(other.status().message(),
              HasSubstr("with 2 devices conflicts with --parallel pp=4"));
  EXPECT_THAT(mappedMesh(Options(), "/nowhere.json", 2).status().message(),
              HasSubstr("/nowhere.json"));
}
