// SPDX-License-Identifier: MIT

// Option names and values of earlier versions. --help hides them, but the
// command line, YAML files and recorded options accept them. Two names are
// accepted only in files that an earlier version wrote.

#include "runtime/Options/CommandLine.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/Base/JsonText.h"
#include "runtime/Options/OptionValue.h"
#include "tools/qlora-import/ImporterOptions.h"
#include "tools/qlora-run/RunnerOptions.h"
#include "tools/qloracc/CompilerOptions.h"

using namespace qlora;

namespace {

struct Spelling {
  std::string_view table, earlier, value, name, meaning;
};

constexpr Spelling kEarlier[] = {
    {"run", "padding_free", "true", "step_packing", "\"true\""},
    {"run", "metric_for_best_model", "argmax_match", "metric_for_best_model",
     "\"exact_match\""},
    {"run", "metric_for_best_model", "eval_argmax_match",
     "metric_for_best_model", "\"exact_match\""},
    {"compiler", "divide_tables", "true", "shard_embeddings", "\"true\""},
    {"compiler", "copied_activations", "all", "offload_activations_policy",
     "\"all\""},
    {"compiler", "dequant", "panel", "dequantize", "\"tiled\""},
    {"compiler", "dequant", "scratch", "dequantize", "\"per-use\""},
    {"compiler", "dequant", "resident", "dequantize", "\"once\""},
    {"compiler", "max_buckets", "2", "gradient_buckets", "2"},
    {"compiler", "report", "/plan.json", "plan_report", "\"/plan.json\""},
};

std::span<const OptionRow> tableOf(std::string_view name) {
  return name == "run" ? optionTable()
                       : std::span<const OptionRow>(kCompilerOptions);
}

StatusOr<CommandLine> parseEarlier(std::vector<std::string> words) {
  return parseCommandLine(
      words, {.usage = "usage: tool\n",
              .sections = {{kCompilerOptions, {OptionScope::kProgram}, ""},
                           {optionTable(), {OptionScope::kRun}, ""}},
              .tables = {kCompilerOptions, optionTable()}});
}

std::string yamlFile(const std::string &text) {
  std::string path = testing::TempDir() + "earlier.yaml";
  std::ofstream(path) << text;
  return path;
}

std::string valueIn(const Options &options, std::string_view name) {
  return dumpJson(options.value(name));
}

} // namespace

TEST(EarlierSpellings, AreAcceptedAndNotShown) {
  const std::string help = parseEarlier({"--help-all"})->answer;
  for (const Spelling &one : kEarlier) {
    SCOPED_TRACE(one.earlier);
    const std::string flag = flagSpelling(one.earlier), value(one.value);
    auto line = parseEarlier({flag, value});
    ASSERT_TRUE(line.isOk()) << line.status().message();
    Options flags(tableOf(one.table)), yaml(tableOf(one.table)),
        recorded(tableOf(one.table));
    ASSERT_TRUE(flags.applySettings(line->settings).isOk());
    EXPECT_EQ(valueIn(flags, one.name), one.meaning);
    ASSERT_TRUE(
        yaml.applyYaml(yamlFile(fmt::format("{}: {}\n", one.earlier, value)))
            .isOk());
    EXPECT_EQ(valueIn(yaml, one.name), one.meaning);
    const std::string object =
        fmt::format("{{\"{}\": \"{}\"}}", one.earlier, value);
    ASSERT_TRUE(recorded.applyRecorded(object).isOk());
    if (one.table == "run")
      EXPECT_EQ(valueIn(recorded, one.name), one.meaning);
    EXPECT_EQ(one.earlier == one.name, help.find(flag + " ") != help.npos);
    EXPECT_EQ(help.find(fmt::format("|{}", value)) != help.npos,
              one.value == "true" || one.value == "all");
  }
}

/// The list of tested spellings above has every hidden alias of every option
/// table.
TEST(EarlierSpellings, AreAllTested) {
  const std::span<const OptionRow> tables[] = {
      optionTable(), kCompilerOptions, kRunnerOptions, kImporterOptions};
  for (std::span<const OptionRow> table : tables)
    for (const OptionRow &row : table)
      for (const OptionName &name : optionNames(row))
        if (!name.isShown() && !name.isRefused())
          EXPECT_GT(
              std::ranges::count(kEarlier, name.name, &Spelling::earlier), 0)
              << name.name;
}

TEST(EarlierSpellings, NamesWithTwoMeaningsAreRefused) {
  const std::string folder =
      "has another meaning in other tools. Fix: write --output-dir (the "
      "adapter to write) or --adapter-name-or-path (the adapter to start from)";
  const std::string base =
      "has another meaning in other tools. Fix: write --adapter-base-name "
      "(name of the base in adapter_config.json) or --model-name-or-path (the "
      "model to train)";
  for (const auto &[name, why] :
       {std::pair("adapter_path", folder), {"base_model_name_or_path", base}}) {
    const std::string flag = flagSpelling(name);
    EXPECT_EQ(parseEarlier({flag, "x"}).status().message(), flag + ": " + why);
    EXPECT_EQ(parseEarlier({flag + "=x"}).status().message(),
              flag + ": " + why);
    Options options;
    const std::string path = yamlFile(fmt::format("seed: 1\n{}: x\n", name));
    EXPECT_EQ(options.applyYaml(path).message(),
              fmt::format("{}:2: '{}': {}", path, name, why));
  }
}

/// Resolved configurations and programs of earlier versions have the old names.
TEST(EarlierSpellings, FilesOfEarlierVersionsLoad) {
  std::string text = Options().resolvedYaml();
  const std::string today = "adapter_base_name: \"\"";
  ASSERT_NE(text.find(today), text.npos);
  text.replace(text.find(today), today.size(),
               "base_model_name_or_path: \"me/base\"");
  Options resolved, recorded;
  const Status status = resolved.applyYaml(yamlFile(text));
  ASSERT_TRUE(status.isOk()) << status.message();
  EXPECT_EQ(resolved.text("adapter_base_name"), "me/base");
  const char *object = R"({"base_model_name_or_path": "me/base"})";
  ASSERT_TRUE(recorded.applyRecorded(object).isOk());
  EXPECT_EQ(recorded.text("adapter_base_name"), "me/base");
}

TEST(EarlierSpellings, ASimulatedGpuIsADevice) {
  std::vector<OptionSetting> settings = {
      {findOption(kRunnerOptions, "simulate"), "h200", "--simulate"}};
  setSimulatedDevice(kRunnerOptions, settings);
  Options now(kRunnerOptions), before(kRunnerOptions);
  const OptionSetting earlier[] = {
      {findOption(kRunnerOptions, "device"), "null:h200", "--device"}};
  ASSERT_TRUE(now.applySettings(settings).isOk());
  ASSERT_TRUE(before.applySettings(earlier).isOk());
  EXPECT_EQ(now.text("device"), before.text("device"));
}
