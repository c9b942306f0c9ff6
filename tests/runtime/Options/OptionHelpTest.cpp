// SPDX-License-Identifier: MIT

// --help: every spelling of every option occurs once, within 80 columns.

#include "runtime/Options/CommandLine.h"

#include <gtest/gtest.h>

#include <sstream>

using namespace qlora;

static const OptionRow kTool[] = {
    {"output", OptionType::kPath, "", OptionScope::kRun, "Tool",
     "what to write", "o"},
    {"cache", OptionType::kBool, "true", OptionScope::kRun, "Tool", "keep"},
};

static Tool helpTool() {
  return {.usage = "usage: tool\n",
          .common = {"output", "cache", "learning_rate", "compute_dtype",
                     "lora_target_modules", "memory_limit"},
          .example = "  tool\n",
          .sections = {{kTool, {OptionScope::kRun}, ""},
                       {optionTable(),
                        {OptionScope::kRun, OptionScope::kOutput},
                        ""},
                       {optionTable(), {OptionScope::kProgram}, "Fixed"}},
          .footer = "\nMore.\n",
          .tables = {kTool, optionTable()}};
}

static std::string all() { return fullHelp(helpTool()); }

/// Returns how often the flag occurs in the help's column of flags.
static int count(const std::string &help, const std::string &flag) {
  std::istringstream lines(help);
  int times = 0;
  for (std::string line; std::getline(lines, line);) {
    const size_t start = line.find_first_not_of(' ');
    if (start == line.npos || start > 6 || line[start] != '-')
      continue;
    // Two spaces separate flags from text.
    std::istringstream flags(
        line.substr(start, line.find("  ", start) - start));
    for (std::string word; flags >> word;)
      times += word == flag || word == flag + ",";
  }
  return times;
}

TEST(OptionHelp, HasEveryNameAndAliasOnce) {
  const std::string help = all();
  const std::span<const OptionRow> tables[] = {kTool, optionTable(),
                                               questionTable()};
  for (const std::string &name : allOptionNames(tables))
    EXPECT_EQ(count(help, flagSpelling(name)), 1) << name;
  EXPECT_EQ(count(help, "--lora_r"), 0);
}

TEST(OptionHelp, StaysWithinAScreen) {
  std::istringstream lines(all());
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
  }
}

TEST(OptionHelp, IsLaidOutAsArgparseDoes) {
  EXPECT_EQ(commonHelp(helpTool()), R"(usage: tool

options:
  -o, --output PATH     what to write
  --cache, --no-cache   keep (default: true)
  --learning-rate X, --lr
                        peak learning rate (default: 5e-5)
  --compute-dtype bfloat16|float32, --bnb-4bit-compute-dtype, --dtype,
      --torch-dtype, --bf16 (bfloat16)
                        data type of activations (default: bfloat16; compiled
                        in)
  --lora-target-modules NAME [NAME ...], --target-modules, --lora-target,
      --lora-target-linear (all-linear)
                        modules that get an adapter: all-linear, name endings
                        such as q_proj v_proj, or a regular expression for whole
                        names (default: all-linear; compiled in)
  --memory-limit SIZE|auto
                        maximum memory of a rank, such as 20GiB; auto: what is
                        free on this machine or its first GPU, less a reserve;
                        0: no limit (default: 0; compiled in)

example:
  tool

--help-all lists every option.
)");
}

TEST(OptionHelp, PutsAScopeUnderOneHeading) {
  const std::string help = all();
  const size_t fixed = help.find("\nFixed:\n");
  ASSERT_NE(fixed, std::string::npos);
  for (const OptionRow &row : optionTable()) {
    // Other texts name options too. An option's own line may begin with its
    // letter, as in "-o, --output".
    const std::string flag = flagSpelling(row.name);
    size_t at = help.find("\n  " + flag);
    if (at == std::string::npos)
      at = help.find(", " + flag);
    ASSERT_NE(at, std::string::npos) << row.name;
    EXPECT_EQ(at > fixed, row.scope == OptionScope::kProgram) << row.name;
  }
  EXPECT_EQ(help.find("\nLoRA:\n"), std::string::npos);
  EXPECT_NE(help.find("\nFiles:\n"), std::string::npos);
  EXPECT_TRUE(help.ends_with("print the version\n\nMore.\n"));
}
