// SPDX-License-Identifier: MIT

// Learning rates of every step, and the checks of their parameters.

#include "runtime/Options/LearningRate.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/Base/JsonText.h"
#include "runtime/Options/OptionTable.h"

namespace qlora {
namespace {

using nlohmann::ordered_json;
using Settings = std::vector<std::pair<const char *, std::string>>;

Status applyAll(Options &options, const Settings &values) {
  std::vector<OptionSetting> settings;
  for (const auto &[name, text] : values)
    settings.push_back({findOption(optionTable(), name), text, name});
  return options.applySettings(settings);
}

LearningRate rateOf(const Settings &values, int64_t total) {
  Options options;
  EXPECT_TRUE(applyAll(options, values).isOk());
  EXPECT_TRUE(options.validate().isOk());
  return LearningRate(options, total);
}

std::string errorOf(Settings values) {
  Options options;
  const Status status = applyAll(options, values);
  return std::string(status.isOk() ? options.validate().message()
                                   : status.message());
}

/// schedules.json has the rates of transformers and axolotl (schedules.py).
TEST(LearningRate, IsThatOfTheOtherTools) {
  std::ifstream file(std::string(QLORA_TEST_INPUTS) + "/schedules.json");
  const auto known = ordered_json::parse(file);
  const std::string base = dumpJson(known.at("learning_rate"));
  EXPECT_GE(known.at("cases").size(), 200u);
  for (const auto &c : known.at("cases")) {
    const std::vector<double> rates = c.at("rates");
    const LearningRate rate =
        rateOf({{"learning_rate", base},
                {"lr_scheduler_type", c.at("lr_scheduler_type")},
                {"lr_scheduler_kwargs", dumpJson(c.at("lr_scheduler_kwargs"))},
                {"warmup_steps", dumpJson(c.at("warmup_steps"))}},
               c.at("total"));
    for (size_t step = 0; step < rates.size(); ++step)
      EXPECT_DOUBLE_EQ(rate.at(static_cast<int64_t>(step)), rates[step])
          << dumpJson(c) << " step " << step;
  }
}

TEST(LearningRate, WarmupStepsWinOverRatio) {
  const auto warmup = [](const char *steps, const char *ratio, int64_t total) {
    return rateOf({{"warmup_steps", steps}, {"warmup_ratio", ratio}}, total)
        .warmupSteps();
  };
  EXPECT_EQ(warmup("5", "0.5", 100), 5);
  EXPECT_EQ(warmup("0", "0.03", 101), 4); // ceil(3.03)
  EXPECT_EQ(warmup("0.03", "0", 101), 4); // transformers 5 has no ratio
  EXPECT_EQ(warmup("0", "0", 100), 0);
}

TEST(LearningRate, WarmupOfAxolotl) {
  const auto warmup = [](const char *ratio, int64_t total) {
    return rateOf({{"warmup_ratio", ratio}, {"warmup_rule", "axolotl"}}, total)
        .warmupSteps();
  };
  EXPECT_EQ(warmup("0.03", 101), 3); // int(3.03)
  EXPECT_EQ(warmup("0.01", 101), 2); // 1 becomes 2
  EXPECT_EQ(warmup("0.01", 99), 0);
  EXPECT_EQ(warmup("0", 200), 6);
  EXPECT_EQ(warmup("0", 40), 2);
  EXPECT_EQ(warmup("0", 9000), 100);
}

TEST(LearningRate, RefusesWrongParameters) {
  EXPECT_EQ(errorOf({{"lr_scheduler_type", "cosine_with_min_lr"}}),
            "--lr-scheduler-type cosine_with_min_lr needs either min_lr or "
            "min_lr_rate in --lr-scheduler-kwargs");
  EXPECT_EQ(errorOf({{"lr_scheduler_type", "warmup_stable_decay"}}),
            "--lr-scheduler-type warmup_stable_decay needs num_decay_steps in "
            "--lr-scheduler-kwargs");
  EXPECT_EQ(errorOf({{"lr_scheduler_kwargs", "num_cycles=2"}}),
            "--lr-scheduler-kwargs: 'num_cycles' is no parameter of linear, "
            "which has none");
  EXPECT_EQ(errorOf({{"lr_scheduler_type", "cosine"},
                     {"lr_scheduler_kwargs", "num_cycles=two"}}),
            "--lr-scheduler-kwargs: 'num_cycles': expects a number, but got "
            "'two'");
  EXPECT_EQ(
      errorOf({{"lr_scheduler_type", "warmup_stable_decay"},
               {"lr_scheduler_kwargs", "num_decay_steps=3,decay_type=square"}}),
      "--lr-scheduler-kwargs: 'decay_type' is square; choose from: "
      "cosine, linear, 1-sqrt");
  EXPECT_EQ(errorOf({{"lr_scheduler_type", "polynomial"},
                     {"lr_scheduler_kwargs", "lr_end=0.01"}}),
            "--lr-scheduler-kwargs: lr_end (0.01) must be below "
            "--learning-rate (5e-05)");
  EXPECT_EQ(errorOf({{"save_steps", "2.5"}}),
            "save_steps: expects a number of steps, or a fraction of all steps "
            "below 1, but got '2.5'");
}

TEST(LearningRate, StepsMayBeAFraction) {
  Options options;
  ASSERT_TRUE(applyAll(options, {{"save_steps", "0.25"}}).isOk());
  EXPECT_EQ(options.steps("save_steps", 41), 11); // ceil(10.25)
  EXPECT_EQ(options.steps("logging_steps", 41), 10);
}

} // namespace
} // namespace qlora
