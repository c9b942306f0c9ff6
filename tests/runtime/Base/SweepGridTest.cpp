// SPDX-License-Identifier: MIT

// What --sweep asks for.

#include "runtime/Base/SweepGrid.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

TEST(SweepGrid, ListsBecomeAxesAndPoints) {
  const std::vector<std::string> words = {"learning_rate=1e-4", "2e-4",
                                          "lora_r=8", "16"};
  auto axes = sweepAxes(words);
  ASSERT_TRUE(axes.isOk()) << axes.status().message();
  std::vector<std::string> names;
  for (const SweepPoint &point : sweepPoints(*axes))
    names.push_back(point.name());
  EXPECT_EQ(names, std::vector<std::string>(
                       {"learning_rate=1e-4,lora_r=8",
                        "learning_rate=1e-4,lora_r=16",
                        "learning_rate=2e-4,lora_r=8",
                        "learning_rate=2e-4,lora_r=16"}));
}

TEST(SweepGrid, WithoutAxesThereIsOneRun) {
  EXPECT_EQ(sweepPoints({}).size(), 1u);
}

TEST(SweepGrid, RefusesWhatIsNoAxis) {
  for (const char *text : {"lora_r", "=1,2", "lora_r=", "lora_r=1,,2",
                           "lora_r=8,8"})
    EXPECT_FALSE(parseSweepAxis(text).isOk()) << text;
}

TEST(SweepGrid, NamesHaveNoSlash) {
  EXPECT_EQ(SweepPoint{{{"train_file", "a/b.jsonl"}}}.name(),
            "train_file=a_b.jsonl");
}

TEST(SweepGrid, SettingsAreOptionsOfARun) {
  const std::span<const OptionRow> tables[] = {optionTable()};
  auto settings = SweepPoint{{{"lr", "1e-4"}}}.settings(tables);
  ASSERT_TRUE(settings.isOk());
  EXPECT_STREQ(settings->at(0).row->name, "learning_rate");
  auto unknown = SweepPoint{{{"lora_rr", "1"}}}.settings(tables);
  EXPECT_NE(unknown.status().message().find("did you mean 'lora_r'"),
            std::string::npos)
      << unknown.status().message();
  for (const char *name : {"output_dir", "model_name_or_path", "run_name"})
    EXPECT_FALSE(SweepPoint{{{name, "x"}}}.settings(tables).isOk()) << name;
}

} // namespace
} // namespace qlora
