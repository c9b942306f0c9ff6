// SPDX-License-Identifier: MIT

// Input files with weights, and column names, from flags and YAML.

#include "runtime/Options/DataValues.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/Base/JsonText.h"
#include "runtime/Options/Options.h"

namespace qlora {
namespace {

std::string dataFile(const std::string &name, const std::string &text) {
  const auto path = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
  return path.string();
}

OptionSetting setting(const char *name, const std::string &text) {
  return {findOption(optionTable(), name), text, std::string("--") + name};
}

/// Returns the paths of train_file and their weights as text.
std::string pathsOf(const Options &options) {
  std::string text;
  for (const auto &[path, weight] : options.paths("train_file"))
    text += fmt::format(
        "{}*{} ", std::filesystem::path(path).filename().string(), weight);
  return text;
}

TEST(DataValues, SeveralPathsHaveWeights) {
  auto yaml = dataFile("w/w.yaml", "train_file:\n  - a.jsonl:0.5\n"
                                    "  - {path: b.jsonl, weight: 3}\n"
                                    "  - path: c:2\n");
  Options options;
  ASSERT_EQ(options.applyYaml(yaml).message(), "");
  EXPECT_EQ(pathsOf(options), "a.jsonl*0.5 b.jsonl*3 c:2*1 ");
  EXPECT_EQ(options.paths("train_file")[1].path,
            std::filesystem::path(yaml).parent_path() / "b.jsonl");
  // train.so records the values of the YAML file.
  Options compiled;
  ASSERT_TRUE(compiled.applyRecorded(dumpJson(options.recorded())).isOk());
  EXPECT_EQ(compiled.value("train_file"), options.value("train_file"));
  // Flags replace the file's values; several flags are combined.
  OptionSetting flags[] = {setting("train_file", "d:2"),
                           setting("train_file", "e")};
  ASSERT_TRUE(compiled.applySettings(flags).isOk());
  EXPECT_EQ(pathsOf(compiled), "d*2 e*1 ");
}

TEST(DataValues, AFileOfTheWholeNameHasNoWeight) {
  const std::string file = dataFile("x.jsonl:2", "");
  OptionSetting flags[] = {setting("train_file", file)};
  Options options;
  ASSERT_TRUE(options.applySettings(flags).isOk());
  EXPECT_EQ(options.text("train_file"), file);
  flags[0] = setting("train_file", file + ":4");
  ASSERT_TRUE(options.applySettings(flags).isOk());
  EXPECT_EQ(pathsOf(options), "x.jsonl:2*4 ");
}

TEST(DataValues, RefusesWeightsAndColumnsThatAreNone) {
  for (const char *weight : {"x", "0", "-1", "nan", "inf", "1e9", "", "2 "}) {
    Options options;
    OptionSetting flags[] = {
        setting("train_file", std::string("none.jsonl:") + weight)};
    EXPECT_EQ(options.applySettings(flags).message(),
              fmt::format("--train_file: the weight '{}' is not a number above "
                          "0 and up to 1000",
                          weight));
  }
  Options options;
  EXPECT_THAT(options
                  .applyYaml(dataFile("x.yaml", "train_file: [{file: a}]\n"))
                  .message(),
              testing::HasSubstr("expects a path, or {path: FILE, weight: "
                                 "NUMBER}, but got {\"file\":\"a\"}"));
  OptionSetting columns[] = {setting("dataset_columns", "a=b,a=c")};
  EXPECT_EQ(options.applySettings(columns).message(),
            "--dataset_columns: expects NAME=TEXT, each name once, but got "
            "'a=c'");
  columns[0] = setting("dataset_columns", "[prompt=q, completion=a]");
  ASSERT_TRUE(options.applySettings(columns).isOk());
  EXPECT_EQ(options.textMap("dataset_columns").at("completion"), "a");
}

TEST(DataValues, ValidationIsNamedOrTaken) {
  auto error = [](std::vector<OptionSetting> flags) {
    Options options;
    EXPECT_TRUE(options.applySettings(flags).isOk());
    return options.validate().message();
  };
  EXPECT_EQ(error({setting("val_set_size", "0.05")}), "");
  EXPECT_EQ(error({setting("val_set_size", "2.5")}),
            "--val-set-size: expects a fraction below 1 or a number of rows, "
            "but got 2.5");
  EXPECT_EQ(error({setting("val_set_size", "7"),
                   setting("validation_file", "v.jsonl")}),
            "--validation-file conflicts with --val-set-size, which takes "
            "validation rows from the training data; remove one");
  EXPECT_THAT(error({setting("dataset_text_field", "a"),
                     setting("dataset_columns", "text=b")}),
              testing::HasSubstr("reads text from column 'b', but"));
}

} // namespace
} // namespace qlora
