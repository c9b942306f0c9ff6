// SPDX-License-Identifier: MIT

// Scores of answers, with a shell script in place of qlora-data.

#include "runtime/Session/AnswerScorer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/Base/UserFiles.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class AnswerScorerTest : public testing::Test {
protected:
  void SetUp() override {
    fs::remove_all(folder);
    fs::create_directories(folder);
    write("generation_config.json", R"({"eos_token_id": [7, 9]})");
    write("config.json",
          R"({"eos_token_id": 2, "text_config": {"eos_token_id": 4}})");
    set("model_name_or_path", folder);
    set("predict_with_generate", "true");
    set("validation_file", folder + "/rows.safetensors");
  }
  void TearDown() override { fs::remove_all(folder); }

  void write(const std::string &name, const std::string &text) {
    std::ofstream(folder + "/" + name) << text;
  }
  void set(const char *name, const std::string &text) {
    const Status status = options.applySetting(name, text, name);
    ASSERT_TRUE(status.isOk()) << status.message();
  }
  /// Makes a qlora-data that runs these lines for `metrics`.
  std::string converter(const std::string &metrics) {
    write("qlora-data", "#!/bin/sh\nif [ $1 = end-tokens ]; then echo "
                        "'{\"end_tokens\": [3], \"stop_strings\": [\"#\"]}'; "
                        "exit; fi\n" +
                            metrics);
    fs::permissions(folder + "/qlora-data", fs::perms::owner_all);
    return folder + "/qlora-data";
  }
  std::vector<Json> lines(const std::string &path) {
    std::istringstream text(readWholeFile(path).value());
    std::vector<Json> all;
    for (std::string line; std::getline(text, line);)
      all.push_back(Json::parse(line));
    return all;
  }
  /// Returns the error of scoring with a qlora-data that prints `text`.
  std::string errorFor(const std::string &text) {
    auto scorer = AnswerScorer::find(options, converter("echo '" + text + "'"));
    EXPECT_TRUE(scorer.isOk()) << scorer.status().message();
    const auto scores = scorer->score(answers, folder + "/step-0.jsonl");
    return scores.isOk() ? "" : scores.status().message();
  }

  const std::string folder = testing::TempDir() + "answer_scorer";
  Options options;
  /// A match, a wrong answer, and a row that is not answered.
  const std::vector<ComparedAnswer> answers = {
      {{1, 2}, {5, 9}, {5, 7, 8}, true},
      {{1}, {6, 7}, {5, 6}, true},
      {{4}, {}, {8}, false}};
};

const Status kNoConverter = Status::unavailable("no qlora-data");

TEST_F(AnswerScorerTest, ComparesIdsWithoutATokenizer) {
  auto scorer = AnswerScorer::find(options, kNoConverter);
  ASSERT_TRUE(scorer.isOk()) << scorer.status().message();
  EXPECT_EQ(scorer->endTokens(), (std::vector<int32_t>{7, 9, 2, 4}));
  EXPECT_EQ(scorer->remark(), "generated answers are compared as token ids, "
                              "without f1 and ROUGE: no qlora-data");
  const auto scores = scorer->score(answers, folder + "/step-0.jsonl");
  ASSERT_TRUE(scores.isOk()) << scores.status().message();
  EXPECT_DOUBLE_EQ(scores.value().at("exact_match"), 1.0 / 3);
  EXPECT_DOUBLE_EQ(scores.value().at("stopped"), 2.0 / 3);
  const auto written = lines(folder + "/step-0.jsonl");
  ASSERT_EQ(written.size(), 3u);
  EXPECT_EQ(written[1], (Json{{"index", 1},
                              {"prompt_ids", {1}},
                              {"output_ids", {6, 7}},
                              {"reference_ids", {5, 6}},
                              {"exact_match", 0},
                              {"finish_reason", "stop"}}));
  EXPECT_EQ(written[2]["finish_reason"], "length");
}

TEST_F(AnswerScorerTest, CallsTheTextMetrics) {
  const std::string script = folder + "/metrics.py";
  write("metrics.py", "");
  set("compute_metrics", script);
  set("chat_template", "chatml");
  auto scorer = AnswerScorer::find(
      options, converter("echo \"$@\" > " + folder + "/words\ncp $3 " +
                         folder + "/ids\necho '{\"f1\": 0.5, \"rows\": 3}'\n"));
  ASSERT_TRUE(scorer.isOk()) << scorer.status().message();
  EXPECT_EQ(scorer->endTokens(), (std::vector<int32_t>{3}));
  EXPECT_EQ(scorer->remark(),
            "answers do not end at the stop_strings of generation_config.json "
            "([\"#\"]), because training has no text");
  const std::string path = folder + "/step-0.jsonl";
  const auto scores = scorer->score(answers, path);
  ASSERT_TRUE(scores.isOk()) << scores.status().message();
  EXPECT_EQ(scores.value(), (Json{{"f1", 0.5}}));
  EXPECT_EQ(readWholeFile(folder + "/words").value(),
            "metrics --input " + path + ".ids --output " + path + " --model " +
                folder + " --chat-template chatml --compute-metrics " + script +
                "\n");
  EXPECT_FALSE(fs::exists(path + ".ids"));
  const auto ids = lines(folder + "/ids");
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_EQ(ids[0], (Json{{"prompt_ids", {1, 2}},
                          {"output_ids", {5, 9}},
                          {"reference_ids", {5, 7, 8}},
                          {"finish_reason", "stop"}}));
}

TEST_F(AnswerScorerTest, RefusesMetrics) {
  EXPECT_EQ(errorFor(R"({"bleu": 0.5, "loss": 1})"),
            "--compute-metrics: 'loss' is a metric that every evaluation has. "
            "Fix: give it another name");
  EXPECT_EQ(errorFor(R"({"bleu": "high"})"),
            "--compute-metrics: the metric 'bleu' is not a number, but "
            "\"high\". Fix: return numbers only");
  EXPECT_EQ(errorFor("done"), "'" + folder +
                                  "/qlora-data metrics' printed no JSON "
                                  "object. Fix: install qlora and qlora-data "
                                  "of one version");
}

/// Text, and metrics of text, need a tokenizer.
TEST_F(AnswerScorerTest, NeedsATokenizerForText) {
  const auto error = [&] {
    return AnswerScorer::find(options, kNoConverter).status().message();
  };
  EXPECT_EQ(error(), "");
  set("metric_for_best_model", "eval_rougeL");
  EXPECT_EQ(error(), "") << "no evaluations are compared";
  set("early_stopping_patience", "2");
  EXPECT_EQ(error(), "--predict-with-generate: no qlora-data");
  set("metric_for_best_model", "stopped");
  EXPECT_EQ(error(), "");
  set("validation_file", folder + "/rows.jsonl");
  EXPECT_EQ(error(), "--predict-with-generate: no qlora-data");
}

std::string checkOf(
    const std::vector<std::pair<const char *, const char *>> &settings) {
  Options options;
  for (const auto &[name, text] : settings)
    EXPECT_TRUE(options.applySetting(name, text, flagSpelling(name)).isOk());
  return checkAnswerOptions(options).message();
}

TEST(AnswerOptions, AreChecked) {
  const std::pair<const char *, const char *> answers = {
      "predict_with_generate", "true"};
  const std::pair<const char *, const char *> rows = {"val_set_size", "4"};
  EXPECT_EQ(checkOf({answers, rows}), "");
  EXPECT_EQ(checkOf({answers, rows, {"parallel", "fsdp=2,zero1=2"}}), "");
  EXPECT_EQ(checkOf({answers, rows, {"parallel", "auto"}}), "");
  EXPECT_EQ(checkOf({answers}),
            "--predict-with-generate: there are no rows to answer. Fix: add "
            "--validation-file FILE, or --val-set-size");
  EXPECT_EQ(checkOf({answers, rows, {"rl", "dpo"}}),
            "--predict-with-generate does not work with --rl dpo. Fix: remove "
            "it, and generate with the trained adapter");
  for (const char *axis : {"tp=2", "cp=2", "pp=2", "ep=2"})
    EXPECT_EQ(checkOf({answers, rows, {"parallel", axis}}),
              fmt::format("--predict-with-generate does not work with "
                          "--parallel {}, only with fsdp, zero1 and zero2. "
                          "Fix: remove it, and run qlora eval on the trained "
                          "adapter",
                          axis));
  EXPECT_EQ(checkOf({answers, rows, {"compute_metrics", "/no/file.py"}}),
            "--compute-metrics: there is no file '/no/file.py'. Fix: name a "
            "Python file with a function compute_metrics");
  EXPECT_EQ(checkOf({{"compute_metrics", "a.py"}}),
            "--compute-metrics: needs generated answers. Fix: add "
            "--predict-with-generate");
  EXPECT_EQ(checkOf({{"metric_for_best_model", "rouge1"},
                     {"early_stopping_patience", "1"}}),
            "--metric-for-best-model rouge1: needs generated answers. Fix: add "
            "--predict-with-generate");
  EXPECT_EQ(checkOf({{"metric_for_best_model", "rouge1"}}), "");
}

} // namespace
} // namespace qlora
