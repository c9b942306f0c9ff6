// SPDX-License-Identifier: MIT

// Command lines: spellings of flags and values, and what is refused.

#include "runtime/Base/CommandLine.h"

#include <gtest/gtest.h>

#include <fstream>

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
  EXPECT_EQ(settings({"--bf16", "no"}), "compute_dtype=float32");
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
            "unknown option '--lora-rnk'; did you mean '--lora-rank'?");
  EXPECT_EQ(settings({"--zzzzzzzz"}),
            "unknown option '--zzzzzzzz'; --help-all lists them");
  EXPECT_EQ(settings({"--lora-r"}), "--lora-r expects a value");
  EXPECT_EQ(settings({"--lora-r", "--packing"}), "--lora-r expects a value");
  EXPECT_EQ(settings({"--no-lora-r"}),
            "unknown option '--no-lora-r'; did you mean '--lora-r'?");
  EXPECT_EQ(settings({"---"}), "unknown option '---'; --help-all lists them");
  EXPECT_EQ(settings({"--="}), "unknown option '--'; --help-all lists them");
  EXPECT_EQ(settings({"--output", "x"}),
            "unknown option '--output'; did you mean '--output-dir'?");
  EXPECT_EQ(settings({"-lora-r", "4"}),
            "unknown option '-lora-r'; did you mean '--lora-r'?");
  EXPECT_EQ(settings({"--no-lora-target-linear"}),
            "--no-lora-target-linear: can only be true; say what you want with "
            "--lora-target-modules");
}

/// "rest | name=text ..." of a line with a list.
static std::string withList(std::vector<std::string> words) {
  auto line = parse(words);
  if (!line.isOk())
    return line.status().message();
  return fmt::format("{} | {}", fmt::join(line->rest, " "), settings(words));
}

TEST(CommandLine, ListsTakeTheWordsThatFollow) {
  const std::string both = "m.mlir | lora_target_modules=[\"q_proj\",\"v_proj\"]";
  const std::string flag = "--lora-target-modules";
  EXPECT_EQ(withList({"m.mlir", flag, "q_proj", "v_proj"}), both);
  EXPECT_EQ(withList({flag, "q_proj", "v_proj", "m.mlir"}), both);
  EXPECT_EQ(withList({flag, "q_proj", "m.mlir"}),
            "m.mlir | lora_target_modules=q_proj");
  EXPECT_EQ(withList({flag, "q_proj,", "v_proj", "m.mlir"}), both);
  EXPECT_EQ(withList({flag, "q_proj", "v_proj", "--gpus", "2", "m.mlir"}),
            both + " gpus=2");
  EXPECT_EQ(withList({"--gpus", "2", "m.mlir", flag, "q_proj", "v_proj"}),
            "m.mlir | gpus=2" + both.substr(both.find(" l")));
  EXPECT_EQ(withList({flag, "q_proj", "v_proj", "--", "other"}),
            "other" + both.substr(both.find(" |")));
  // Standard input, and a program of any name that is there.
  EXPECT_EQ(withList({flag, "q_proj", "v_proj", "-"}),
            "-" + both.substr(both.find(" |")));
  const std::string file = testing::TempDir() + "a-program";
  std::ofstream(file) << "x";
  EXPECT_EQ(withList({flag, "q_proj", "v_proj", file}),
            file + both.substr(both.find(" |")));
  EXPECT_EQ(withList({"--max-length", "512", "1024", "t.so"}),
            "t.so | max_length=[\"512\",\"1024\"]");
}

TEST(CommandLine, OneWordOfAListStaysAsItIs) {
  for (const char *text : {"q_proj,v_proj", "[q_proj, v_proj]", "all-linear",
                           ".*\\.(q|v)_proj", "[qv]_proj"})
    EXPECT_EQ(withList({"--lora-target-modules", text, "m.mlir"}),
              std::string("m.mlir | lora_target_modules=") + text);
  // A shell makes two words of this, and an equals sign takes one.
  EXPECT_EQ(withList({"--target-modules", "[q_proj,", "v_proj]", "m.mlir"}),
            "m.mlir | lora_target_modules=[q_proj, v_proj]");
  EXPECT_EQ(withList({"--target-modules=q_proj", "model", "--gpus", "2"}),
            "model | lora_target_modules=q_proj gpus=2");
  EXPECT_EQ(withList({"--target-modules", "m.mlir"}),
            "--target-modules expects a value");
}

TEST(CommandLine, OtherFlagsCanBeKept) {
  auto line = parse({"a.mlir", "-o", "b.so", "--mlir-timing", "--lora-r=2"},
                    UnknownFlags::kKeep);
  ASSERT_TRUE(line.isOk());
  EXPECT_EQ(line->rest, (std::vector<std::string>{"a.mlir", "-o", "b.so",
                                                  "--mlir-timing"}));
  EXPECT_EQ(line->settings.size(), 1u);
}

TEST(CommandLine, NamesAndAliasesAreUnique) {
  std::vector<std::string> names = allOptionNames(kTables);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}
