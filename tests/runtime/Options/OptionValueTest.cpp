// SPDX-License-Identifier: MIT

// Values of options from text, and their recorded form.

#include "runtime/Options/OptionValue.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/Base/JsonText.h"
#include "runtime/Options/Options.h"

namespace qlora {
namespace {

std::string yamlFile(const std::string &name, const std::string &text) {
  std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

TEST(OptionValue, TargetModulesText) {
  const OptionRow *row = findOption(optionTable(), "target_modules");
  auto parse = [&](const char *text) {
    return dumpJson(*parseOptionText(*row, text));
  };
  EXPECT_EQ(parse("q_proj,v_proj"), R"(["q_proj","v_proj"])");
  EXPECT_EQ(parse("[q_proj, v_proj]"), R"(["q_proj","v_proj"])");
  EXPECT_EQ(parse("q_proj"), R"(["q_proj"])");
  EXPECT_EQ(parse("all"), R"("all-linear")");
  EXPECT_EQ(parse(R"(.*\.(q|v)_proj)"), R"(".*\\.(q|v)_proj")");
  EXPECT_EQ(parse("[qv]_proj"), R"("[qv]_proj")");
}

TEST(OptionValue, ByteSizes) {
  EXPECT_EQ(*parseByteSize("20GiB"), 20ll << 30);
  EXPECT_EQ(*parseByteSize("20 GB"), 20000000000);
  EXPECT_EQ(*parseByteSize("512m"), 512ll << 20);
  EXPECT_EQ(*parseByteSize("1000"), 1000);
  for (const char *bad : {"", "GiB", "1XB", "-1", "1e30T", "1.2.3", "1GiBs"})
    EXPECT_FALSE(parseByteSize(bad).isOk()) << bad;
}

/// The order is relevant, because PEFT takes the first pattern that matches a
/// module.
TEST(OptionValue, PatternsKeepTheirOrder) {
  const std::string map = R"({"q_proj":2,"layers.0.self_attn.q_proj":6})";
  const auto orderIn = [](const Options &options) {
    return dumpJson(options.value("lora_rank_pattern"));
  };
  Options yaml, flag, recorded, resolved;
  ASSERT_TRUE(
      yaml.applyYaml(yamlFile("p.yaml", "lora_rank_pattern:\n  q_proj: 2\n"
                                        "  layers.0.self_attn.q_proj: 6\n"))
          .isOk());
  EXPECT_EQ(orderIn(yaml), map);
  const OptionSetting given[] = {
      {findOption(optionTable(), "lora_rank_pattern"), map, "the flag"}};
  ASSERT_TRUE(flag.applySettings(given).isOk());
  EXPECT_EQ(orderIn(flag), map);
  ASSERT_TRUE(recorded.applyRecorded(dumpExact(flag.recorded())).isOk());
  EXPECT_EQ(orderIn(recorded), map);
  ASSERT_TRUE(
      resolved.applyYaml(yamlFile("r.yaml", flag.resolvedYaml())).isOk());
  EXPECT_EQ(orderIn(resolved), map);
}

TEST(OptionValue, ExactTextIsYaml) {
  const nlohmann::ordered_json names = {"tok\xff, 1", "b"};
  EXPECT_EQ(yamlTextToJson(dumpExact(names)).value(), names);
}

} // namespace
} // namespace qlora
