// SPDX-License-Identifier: MIT

// The best evaluation and early stopping, with the rules of transformers'
// EarlyStoppingCallback.

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/Checkpoint/BestModel.h"
#include "runtime/Options/OptionValue.h"

namespace qlora {
namespace {

Options optionsOf(std::vector<std::pair<const char *, const char *>> given) {
  Options options;
  for (const auto &[name, text] : given) {
    const OptionSetting setting = {findOption(optionTable(), name), text, name};
    EXPECT_TRUE(options.applySettings({&setting, 1}).isOk());
  }
  return options;
}

EvaluationResult loss(double value) {
  EvaluationResult result;
  result.loss = value;
  result.tokenAccuracy = value;
  return result;
}

TEST(BestModel, IsTheLowestLossAndTheGreatestAccuracy) {
  BestModel lowest(optionsOf({}));
  BestModel greatest(optionsOf({{"metric_for_best_model",
                                 "eval_token_accuracy"}}));
  int64_t step = 0;
  for (double value : {0.5, 0.7, 0.3, std::nan(""), 0.4}) {
    lowest.add(loss(value), ++step);
    greatest.add(loss(value), step);
  }
  EXPECT_EQ(lowest.step(), 3);
  EXPECT_EQ(lowest.metric(), 0.3);
  EXPECT_EQ(greatest.step(), 2);
  EXPECT_FALSE(lowest.shouldStop());
}

/// Metrics of generated answers replace evaluations' own of the same name.
TEST(BestModel, ComparesAnswers) {
  BestModel rouge(optionsOf({{"predict_with_generate", "true"},
                             {"metric_for_best_model", "eval_rougeL"}}));
  BestModel match(optionsOf({{"predict_with_generate", "true"},
                             {"metric_for_best_model", "exact_match"}}));
  int64_t step = 0;
  for (double value : {0.5, 0.75, 0.25}) {
    EvaluationResult result;
    result.exactMatch = 1 - value;
    result.ofAnswers = {{"rougeL", value}, {"exact_match", value}};
    rouge.add(result, ++step);
    match.add(result, step);
  }
  EXPECT_EQ(rouge.step(), 2);
  EXPECT_EQ(rouge.metric(), 0.75);
  EXPECT_EQ(match.step(), 2);
  // Without answers, exact_match has another meaning.
  BestModel other(optionsOf({{"metric_for_best_model", "exact_match"}}));
  other.restore(match.state());
  EXPECT_EQ(other.metric(), std::nullopt);
  rouge.add(loss(1), ++step); // without the metric
  EXPECT_EQ(rouge.step(), 2);
}

TEST(BestModel, StopsAfterThePatience) {
  const Options options = optionsOf({{"early_stopping_patience", "2"},
                                     {"early_stopping_threshold", "0.1"}});
  BestModel best(options);
  best.add(loss(1.0), 1);
  best.add(loss(0.95), 2); // better, but within the threshold
  EXPECT_EQ(best.step(), 2);
  EXPECT_FALSE(best.shouldStop());
  BestModel other(options);
  other.restore(best.state());
  for (BestModel *one : {&best, &other}) {
    one->add(loss(0.9), 3);
    EXPECT_TRUE(one->shouldStop());
    EXPECT_EQ(one->step(), 3);
  }
}

TEST(BestModel, IsNotComparedWithAnotherMetric) {
  BestModel lowest(optionsOf({}));
  lowest.add(loss(0.5), 1);
  const Options others[] = {
      optionsOf({{"metric_for_best_model", "token_accuracy"}}),
      optionsOf({{"greater_is_better", "true"}})};
  for (const Options &options : others) {
    BestModel resumed(options);
    resumed.restore(lowest.state());
    EXPECT_EQ(resumed.metric(), std::nullopt);
    resumed.add(loss(0.2), 2);
    EXPECT_EQ(resumed.step(), 2);
  }
}

TEST(BestModel, AsksForEvaluationsAtEveryCheckpoint) {
  EXPECT_TRUE(checkBestModelOptions(optionsOf({})).isOk());
  EXPECT_FALSE(
      checkBestModelOptions(optionsOf({{"load_best_model_at_end", "true"}}))
          .isOk());
  const auto check = [](const char *strategy, const char *evalSteps,
                        const char *saveSteps) {
    return checkBestModelOptions(optionsOf({{"load_best_model_at_end", "true"},
                                            {"validation_file", "x.jsonl"},
                                            {"eval_strategy", strategy},
                                            {"eval_steps", evalSteps},
                                            {"save_steps", saveSteps}}))
        .isOk();
  };
  EXPECT_TRUE(check("steps", "5", "10"));
  EXPECT_FALSE(check("steps", "5", "12"));
  EXPECT_FALSE(check("epoch", "0", "10"));
}

TEST(BestModel, KnowsEarlierNamesOfMetrics) {
  const OptionRow &row = *findOption(optionTable(), "metric_for_best_model");
  EXPECT_FALSE(parseOptionText(row, "bleu").isOk());
  BestModel best(optionsOf({{"metric_for_best_model", "exact_match"}}));
  nlohmann::ordered_json state = best.state();
  state["of"] = "argmax_match";
  state["metric"] = 0.5;
  best.restore(state);
  EXPECT_EQ(best.metric(), 0.5);
}

} // namespace
} // namespace qlora
