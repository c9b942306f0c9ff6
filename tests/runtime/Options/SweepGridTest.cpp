// SPDX-License-Identifier: MIT

// Expands --sweep into the settings of its runs.

#include "runtime/Options/SweepGrid.h"

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
  const SweepPoint point{{{"train_file", "a/b.jsonl"}}};
  EXPECT_EQ(point.name(), "train_file=a_b.jsonl");
}

TEST(SweepGrid, SettingsAreOptionsOfARun) {
  const std::span<const OptionRow> tables[] = {optionTable()};
  const SweepPoint known{{{"lr", "1e-4"}}};
  auto settings = known.settings(tables);
  ASSERT_TRUE(settings.isOk());
  EXPECT_STREQ(settings->at(0).row->name, "learning_rate");
  const SweepPoint mistaken{{{"lora_rr", "1"}}};
  auto unknown = mistaken.settings(tables);
  EXPECT_NE(unknown.status().message().find("did you mean 'lora_r'"),
            std::string::npos)
      << unknown.status().message();
  for (const char *name : {"output_dir", "model_name_or_path", "run_name"}) {
    const SweepPoint refused{{{name, "x"}}};
    EXPECT_FALSE(refused.settings(tables).isOk()) << name;
  }
}

} // namespace
} // namespace qlora
