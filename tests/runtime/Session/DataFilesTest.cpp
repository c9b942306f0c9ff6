// SPDX-License-Identifier: MIT

// JSONL files as input of a program: where their rows are cached, and the
// messages about them. QLORA_PYTHON names a shell script that returns the
// fixture's rows for every JSONL file.

#include "runtime/Data/DataFiles.h"

#include <cstdlib>

#include "tests/runtime/Session/SessionFixture.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

class DataFiles : public SessionFixture {
protected:
  void SetUp() override {
    SessionFixture::SetUp();
    std::ofstream(at("data.jsonl")) << "{\"text\": \"a\"}\n";
    python("");
    fs::permissions(at("python"), fs::perms::owner_all);
    setenv("QLORA_PYTHON", at("python").c_str(), 1);
    setenv("XDG_CACHE_HOME", at("cache").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("QLORA_PYTHON");
    unsetenv("XDG_CACHE_HOME");
    SessionFixture::TearDown();
  }

  /// Writes the script that replaces Python. It runs the command `first`, logs
  /// its arguments, and copies rows.safetensors to the path after --output.
  void python(const std::string &first) {
    std::ofstream(at("python"))
        << "#!/bin/sh\nfor word; do if [ $word = --print-key ]; then echo key; "
           "exit; fi; done\n"
        << first << "echo \"$@\" >> " << at("log")
        << "\nwhile [ \"$1\" != --output ]; do shift; done\ncp "
        << at("rows.safetensors") << " \"$2\"\n";
  }
  std::vector<std::string> filesIn(const char *name) {
    std::vector<std::string> names;
    for (const auto &entry : fs::recursive_directory_iterator(folder / name))
      if (entry.is_regular_file())
        names.push_back(entry.path().filename().string());
    return names;
  }
  int conversions() {
    std::ifstream log(at("log"));
    return static_cast<int>(
        std::count(std::istreambuf_iterator<char>(log), {}, '\n'));
  }
};

TEST_F(DataFiles, NoDataLiesInTheOutputFolder) {
  for (const char *out : {"out", "again"}) {
    ProcessOutput output =
        run({"--train-file", at("data.jsonl"), "--output-dir", at(out),
             "--gpus", "2", "--lr", "0.05"});
    ASSERT_EQ(output.exitCode, 0) << output.errors;
    for (const std::string &name : filesIn(out))
      EXPECT_FALSE(name.starts_with("rows")) << name;
    EXPECT_FALSE(fs::exists(folder / out / ".cache"));
  }
  ASSERT_EQ(filesIn("cache/qlora/tokens").size(), 1u);
  EXPECT_EQ(conversions(), 1);
  EXPECT_EQ(adapter("out"), adapter("again"));
}

/// One rank tokenises; the second rank waits for it without a time limit.
TEST_F(DataFiles, TokenisingMayTakeLongerThanACollective) {
  python("sleep 4\n");
  ProcessOutput output =
      run({"--train-file", at("data.jsonl"), "--output-dir", at("out"),
           "--gpus", "2", "--lr", "0.05", "--ddp-timeout", "2"});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
}

TEST_F(DataFiles, WithoutACacheOfTheUserJsonlIsRefused) {
  const std::string home = getenv("HOME") ? getenv("HOME") : "";
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  ProcessOutput output =
      run({"--train-file", at("data.jsonl"), "--output-dir", at("out")});
  setenv("HOME", home.c_str(), 1);
  EXPECT_NE(output.exitCode, 0);
  EXPECT_NE(output.errors.find("set XDG_CACHE_HOME"), std::string::npos)
      << output.errors;
}

TEST_F(DataFiles, SeveralFilesAndTheRowsKeptForValidation) {
  const auto train = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--output-dir", at("out"), "--lr", "0.05",
                               "--overwrite-output-dir", "true"});
    return run(flags);
  };
  // The first file's 5 rows count twice, the second file's 5 rows once. 3 rows
  // are held out for validation.
  ProcessOutput output = train({"--train-file", at("data.jsonl") + ":2",
                                "--train-file", at("rows.safetensors"),
                                "--val-set-size", "3"});
  ASSERT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_NE(output.out.find("of 3 rows"), std::string::npos) << output.out;
  EXPECT_NE(output.out.find("2 inputs: "), std::string::npos) << output.out;
  EXPECT_NE(output.out.find("rows     longest 8 tokens, median "),
            std::string::npos)
      << output.out;

  const std::string data = at("data.jsonl"), flag = "--train-file: '" + data;
  for (const auto &[flags, message] :
       {std::pair(std::vector<std::string>{"--train-file", data, "--train-file",
                                           data},
                  flag + "' is given twice. Fix: write " + data +
                      ":2 to read each row twice"),
        {{"--train-file", data, "--train-file", folder.string()},
         flag + "' is also in the folder '" + folder.string() +
             "'. Fix: leave one of them out"},
        {{"--train-file", data, "--validation-file", data + ":2"},
         "--validation-file: '" + data +
             "' has the weight 2, but validation reads each row once. Fix: "
             "remove the weight"},
        {{"--train-file", at("rows.safetensors"), "--max-samples", "3"},
         "--max-samples 3: '" + at("rows.safetensors") +
             "' is a token file, which is read whole. Fix: remove the option"},
        {{"--train-file", data, "--val-set-size", "5"},
         "--val-set-size 5 takes 5 rows for validation, but the data has 5. "
         "Fix: give a smaller value"}}) {
    output = train(flags);
    EXPECT_EQ(output.exitCode, 1);
    EXPECT_NE(output.errors.find(message), std::string::npos) << output.errors;
  }
}

TEST_F(DataFiles, ColumnsAndProcessesReachTheConverter) {
  ProcessOutput output =
      run({"--train-file", at("data.jsonl"), "--output-dir", at("out"), "--lr",
           "0.05", "--dataset-columns", "prompt=question", "completion=answer",
           "--dataset-text-field", "body", "--dataset-num-proc", "3",
           "--max-samples", "4"});
  ASSERT_EQ(output.exitCode, 0) << output.errors;
  std::ifstream log(at("log"));
  const std::string words(std::istreambuf_iterator<char>(log), {});
  for (const char *flags :
       {"--column completion=answer --column prompt=question --column "
        "text=body",
        "--max-samples 4", "--workers 3"})
    EXPECT_NE(words.find(flags), std::string::npos) << words;
}

TEST_F(DataFiles, ABrokenRowIsReportedOnce) {
  const std::vector<int32_t> ids = {1, 2, 3, 99, 5}, labels(5, 1);
  save("broken.safetensors",
       {item("input_ids", SafetensorsDtype::kI32, ids, {5}),
        item("labels", SafetensorsDtype::kI32, labels, {5}),
        item("row_offsets", SafetensorsDtype::kI64,
             std::vector<int64_t>{0, 2, 5}, {3})});
  for (const char *ranks : {"1", "3"}) {
    const ProcessOutput output =
        run({"--train-file", at("broken.safetensors"), "--output-dir",
             at("out"), "--gpus", ranks, "--overwrite-output-dir"});
    EXPECT_EQ(output.exitCode, 1);
    const std::string error = "': row 1, position 1: token id 99 is outside";
    const size_t first = output.errors.find(error);
    EXPECT_NE(first, std::string::npos) << output.errors;
    EXPECT_EQ(output.errors.find("error", first), std::string::npos)
        << output.errors;
  }
}

TEST_F(DataFiles, SummaryOfEachKindOfFile) {
  auto summarize = [&](const std::string &file) {
    Options options;
    const OptionSetting setting{findOption(optionTable(), "train_file"), file,
                                "train_file"};
    EXPECT_TRUE(options.applySettings({&setting, 1}).isOk());
    CompiledVariants variants;
    variants.batch = 2;
    variants.lengths = {8};
    const nlohmann::json vocabSize = 16;
    RankGroup group = std::move(RankGroup::join({}, FileDescriptor(),
                                                std::chrono::minutes(1)))
                          .value();
    DataRequest request{options, variants, vocabSize};
    // Ranks that report nothing do not read the whole file for the summary.
    EXPECT_EQ(openDataFiles(request, group).value().summary.rows, 0);
    request.note = [](std::string_view) {};
    auto data = openDataFiles(request, group);
    EXPECT_TRUE(data.isOk()) << data.status().message();
    return data.value().summary;
  };
  // Eight micro-batches of two rows of eight tokens. The first token of a row
  // is never a target.
  DataSummary tokens = summarize(at("tokens.safetensors"));
  EXPECT_EQ(tokens.rows, 16);
  EXPECT_EQ(tokens.tokens, 128);
  EXPECT_EQ(tokens.labelledTokens, 112);
  // Rows of 3, 8, 5, 2 and 7 tokens.
  DataSummary rows = summarize(at("rows.safetensors"));
  EXPECT_EQ(rows.rows, 5);
  EXPECT_EQ(rows.tokens, 25);
  EXPECT_EQ(rows.labelledTokens, 20);
  EXPECT_EQ(rows.longest, 8);
  EXPECT_EQ(rows.median, 5);
  EXPECT_EQ(tokens.longest, 0);
}

} // namespace
} // namespace qlora
