// SPDX-License-Identifier: MIT

// JSONL from its file to the program: where its rows are kept, and what is
// said of them. QLORA_PYTHON names a shell script, which gives every JSONL the
// rows of the fixture.

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

  /// $0 qlora-data --tokenizer M --input F ... --output O ...
  void python(const std::string &first) {
    std::ofstream(at("python"))
        << "#!/bin/sh\nfor word; do if [ $word = --print-key ]; then echo key; "
           "exit; fi; done\n"
        << first << "echo \"$@\" >> " << at("log") << "\ncp "
        << at("rows.safetensors") << " \"${15}\"\n";
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

/// The other rank waits as long as this one tokenises, and not for a time.
TEST_F(DataFiles, TokenisingMayTakeLongerThanACollective) {
  python("sleep 6\n");
  ProcessOutput output =
      run({"--train-file", at("data.jsonl"), "--output-dir", at("out"),
           "--gpus", "2", "--lr", "0.05", "--ddp-timeout", "3"});
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
    DataSummary summary, unasked;
    for (const bool reports : {true, false}) {
      DataRequest request{options, variants, vocabSize};
      if (reports)
        request.note = [](std::string_view) {};
      auto data = openDataFile(request, "train_file", group,
                               reports ? &summary : &unasked);
      EXPECT_TRUE(data.isOk()) << data.status().message();
    }
    // Of the ranks that report nothing, none reads the whole file for it.
    EXPECT_EQ(unasked.rows, 0);
    return summary;
  };
  // Eight micro-batches of two rows of eight tokens; the first of a row is no
  // target.
  DataSummary tokens = summarize(at("tokens.safetensors"));
  EXPECT_EQ(tokens.rows, 16);
  EXPECT_EQ(tokens.tokens, 128);
  EXPECT_EQ(tokens.labelledTokens, 112);
  // Rows of 3, 8, 5, 2 and 7.
  DataSummary rows = summarize(at("rows.safetensors"));
  EXPECT_EQ(rows.rows, 5);
  EXPECT_EQ(rows.tokens, 25);
  EXPECT_EQ(rows.labelledTokens, 20);
}

} // namespace
} // namespace qlora
