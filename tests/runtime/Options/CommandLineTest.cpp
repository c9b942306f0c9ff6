// SPDX-License-Identifier: MIT

// Command lines: spellings of flags and values, and errors.

#include "runtime/Options/CommandLine.h"

#include <gtest/gtest.h>

#include <fstream>

using namespace qlora;

static const OptionRow kOwn[] = {
    {"gpus", OptionType::kInt, "1", OptionScope::kRun, "Tool", "ranks"},
    {"output", OptionType::kPath, "", OptionScope::kRun, "Tool", "file", "o"},
};

static Tool tool() {
  return {.version = "tool 1\n",
          .usage = "usage: tool FILE\n",
          .input = "FILE",
          .common = {"gpus"},
          .example = "  tool x\n",
          .sections = {{kOwn, {OptionScope::kRun}, ""}},
          .tables = {kOwn, optionTable()}};
}

static StatusOr<CommandLine> parse(const std::vector<std::string> &words) {
  return parseCommandLine(words, tool());
}

/// Returns the parsed settings as "name=text ...".
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
  EXPECT_EQ(settings({"--gpus=2", "-o", "-1", "-o=b"}),
            "gpus=2 output=-1 output=b");
  EXPECT_EQ(settings({"--lora-target-linear"}),
            "lora_target_modules=all-linear");
  EXPECT_EQ(settings({"--no-bf16"}), "compute_dtype=float32");
  EXPECT_EQ(settings({"--lora-r=4", "--gpus=2", "--lora-r=5"}),
            "lora_r=4 gpus=2 lora_r=5");
}

TEST(CommandLine, Booleans) {
  EXPECT_EQ(settings({"--packing"}), "packing=true");
  EXPECT_EQ(settings({"--packing", "true"}), "packing=true");
  EXPECT_EQ(settings({"--packing", "false"}), "packing=false");
  EXPECT_EQ(settings({"--bf16", "no"}), "compute_dtype=float32");
  EXPECT_EQ(settings({"--no-packing"}), "packing=false");
  EXPECT_EQ(settings({"--no_packing"}), "packing=false");
  EXPECT_EQ(settings({"--completion-only-loss"}), "completion_only_loss=true");
  EXPECT_EQ(settings({"--no-packing=yes"}), "packing=false");
  EXPECT_EQ(settings({"--packing=maybe"}), "packing=maybe");
  EXPECT_EQ(settings({"--packing="}), "packing="); // refused by Options
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
  EXPECT_EQ(settings({"--lora_r="}), "lora_r=");
  EXPECT_EQ(settings({"--max-length", "8", "--max_seq_length", "16"}),
            "--max_seq_length is given twice; remove one");
  EXPECT_EQ(settings({"--no-lora-r"}),
            "unknown option '--no-lora-r'; did you mean '--lora-r'?");
  EXPECT_EQ(settings({"---"}), "unknown option '---'; --help-all lists them");
  EXPECT_EQ(settings({"--="}), "unknown option '--'; --help-all lists them");
  EXPECT_EQ(
      settings({"--adapter", "x"}),
      "unknown option '--adapter'; did you mean '--adapter-name-or-path'?");
  EXPECT_EQ(settings({"-lora-r", "4"}),
            "unknown option '-lora-r'; did you mean '--lora-r'?");
  EXPECT_EQ(settings({"--no-lora-target-linear"}),
            "--lora-target-linear: can only be true; set "
            "--lora-target-modules instead");
}

/// Returns the parsed command line as "rest | name=text ...", where rest are
/// the arguments that belong to no option.
static std::string withList(std::vector<std::string> words) {
  auto line = parse(words);
  if (!line.isOk())
    return line.status().message();
  return fmt::format("{} | {}", fmt::join(line->rest, " "), settings(words));
}

TEST(CommandLine, ListsTakeTheWordsThatFollow) {
  const std::string both =
      "m.mlir | lora_target_modules=[\"q_proj\",\"v_proj\"]";
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
  // A list ends before `-` (standard input) and before the name of an existing
  // program.
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
  // A shell splits `[q_proj, v_proj]` into two arguments. After an equals sign,
  // the value is one argument.
  EXPECT_EQ(withList({"--target-modules", "[q_proj,", "v_proj]", "m.mlir"}),
            "m.mlir | lora_target_modules=[q_proj, v_proj]");
  EXPECT_EQ(withList({"--target-modules=q_proj", "model", "--gpus", "2"}),
            "model | lora_target_modules=q_proj gpus=2");
  EXPECT_EQ(withList({"--target-modules", "m.mlir"}),
            "--target-modules expects a value");
}

TEST(CommandLine, FlagsOfAnotherParserAreKept) {
  Tool withForeign = tool();
  withForeign.isForeign = [](const std::string &name) {
    return name.starts_with("mlir-");
  };
  const std::vector<std::string> words = {"a.mlir", "--mlir-timing",
                                          "-mlir-x=1", "--lora-r=2"};
  auto line = parseCommandLine(words, withForeign);
  ASSERT_TRUE(line.isOk());
  EXPECT_EQ(line->rest, std::vector<std::string>{"a.mlir"});
  EXPECT_EQ(line->foreign,
            (std::vector<std::string>{"--mlir-timing", "-mlir-x=1"}));
  EXPECT_EQ(line->settings.size(), 1u);
  EXPECT_FALSE(parse({"--mlir-timing"}).isOk());
  // Like any flag, a foreign flag ends a list.
  line = parseCommandLine(
      std::vector<std::string>{"--max-length", "8", "--mlir-timing", "a.mlir"},
      withForeign);
  ASSERT_TRUE(line.isOk());
  EXPECT_EQ(line->rest, std::vector<std::string>{"a.mlir"});
}

TEST(CommandLine, QuestionsHaveAnswers) {
  const auto answer = [](const char *flag) { return parse({flag})->answer; };
  EXPECT_EQ(answer("--version"), "tool 1\n");
  EXPECT_EQ(answer("-h"), answer("--help"));
  EXPECT_EQ(answer("-h=true"), answer("--help"));
  EXPECT_TRUE(answer("--help").starts_with("usage: tool FILE\n\noptions:\n"));
  EXPECT_TRUE(answer("--help_all").starts_with("usage: tool FILE\n\nTool:\n"));
  EXPECT_EQ(answer("--gpus=2"), "");
}

TEST(CommandLine, OneInput) {
  const auto input = [](const std::vector<std::string> &words) {
    auto only = onlyInput(*parse(words), tool());
    return only.isOk() ? *only : only.status().message();
  };
  EXPECT_EQ(input({"a", "--gpus", "2"}), "a");
  EXPECT_EQ(input({}), "no FILE is named; usage: tool FILE; see --help");
  EXPECT_EQ(input({"a", "b"}), "expects one FILE, but got 'a' and 'b'");
}

TEST(CommandLine, NamesAndAliasesAreUnique) {
  std::vector<std::string> names = allOptionNames(tool().tables);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}
