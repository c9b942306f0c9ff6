// SPDX-License-Identifier: MIT

// Command lines: spellings of flags and values, and what is refused.

#include "runtime/Core/CommandLine.h"

#include <gtest/gtest.h>

using namespace qlora;

static const OptionRow kTool[] = {
    {"gpus", OptionType::kInt, "1", OptionScope::kRun, "Tool", "ranks"},
    {"help", OptionType::kBool, "false", OptionScope::kRun, "Tool", "help",
     "h"},
};
static const std::span<const OptionRow> kTables[] = {kTool, optionTable()};

static StatusOr<CommandLine>
parse(std::vector<std::string> words,
      UnknownFlags unknown = UnknownFlags::kReject) {
  return parseCommandLine(words, kTables, unknown);
}

/// "name=text ..." of the settings.
static std::string settings(std::vector<std::string> words) {
  auto line = parse(words);
  if (!line.isOk())
    return line.status().message();
  std::string text;
  for (const OptionSetting &setting : line->settings)
    text += std::string(text.empty() ? "" : " ") + setting.row->name + "=" +
            setting.text;
  return text;
}

TEST(CommandLine, Spellings) {
  EXPECT_EQ(settings({"--lora-r", "4", "--lora_r=5"}), "lora_r=4 lora_r=5");
  EXPECT_EQ(settings({"--max-steps", "-1"}), "max_steps=-1");
  EXPECT_EQ(settings({"--lr=1e-5"}), "learning_rate=1e-5");
  EXPECT_EQ(settings({"--gpus=2", "-h"}), "gpus=2 help=true");
  EXPECT_EQ(settings({"--lora-target-linear"}),
            "lora_target_modules=all-linear");
  EXPECT_EQ(settings({"--no-bf16"}), "compute_dtype=float32");
}

TEST(CommandLine, Booleans) {
  EXPECT_EQ(settings({"--packing"}), "packing=true");
  EXPECT_EQ(settings({"--packing", "true"}), "packing=true");
  EXPECT_EQ(settings({"--packing", "false"}), "packing=false");
  EXPECT_EQ(settings({"--no-packing"}), "packing=false");
  EXPECT_EQ(settings({"--no_packing"}), "packing=false");
  EXPECT_EQ(settings({"--completion-only-loss"}), "completion_only_loss=true");
  EXPECT_EQ(settings({"--no-packing=true"}), "--no-packing takes no value");
}

TEST(CommandLine, FilesStayApart) {
  auto line = parse({"train.so", "--packing", "x.so", "--", "--lora-r"});
  ASSERT_TRUE(line.isOk());
  EXPECT_EQ(line->rest,
            (std::vector<std::string>{"train.so", "x.so", "--lora-r"}));
}

TEST(CommandLine, Errors) {
  EXPECT_EQ(settings({"--lora-rnk", "4"}),
            "unknown option '--lora-rnk'; did you mean '--lora_rank'?");
  EXPECT_EQ(settings({"--zzzzzzzz"}),
            "unknown option '--zzzzzzzz'; see --help");
  EXPECT_EQ(settings({"--lora-r"}), "--lora-r expects a value");
  EXPECT_EQ(settings({"--lora-r", "--packing"}), "--lora-r expects a value");
  EXPECT_EQ(settings({"--no-lora-r"}),
            "unknown option '--no-lora-r'; did you mean '--lora_r'?");
  EXPECT_EQ(settings({"---"}), "unknown option '---'; see --help");
  EXPECT_EQ(settings({"--="}), "unknown option '--'; see --help");
}

TEST(CommandLine, OtherFlagsCanBeKept) {
  auto line = parse({"a.mlir", "-o", "b.so", "--mlir-timing", "--lora-r=2"},
                    UnknownFlags::kKeep);
  ASSERT_TRUE(line.isOk());
  EXPECT_EQ(line->rest, (std::vector<std::string>{"a.mlir", "-o", "b.so",
                                                  "--mlir-timing"}));
  EXPECT_EQ(line->settings.size(), 1u);
}

TEST(CommandLine, HelpNamesEveryOption) {
  std::string help = optionHelp(kTables);
  for (const OptionRow &row : optionTable())
    EXPECT_NE(help.find(fmt::format("--{}", row.name)), std::string::npos);
}

TEST(CommandLine, NamesAndAliasesAreUnique) {
  std::vector<std::string> names = allOptionNames(kTables);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}
