// SPDX-License-Identifier: MIT

// Which losses an objective has, and what goes with them.

#include "runtime/Options/ObjectiveOptions.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>

#include "runtime/Base/JsonText.h"

using namespace qlora;

static std::string writeYaml(const std::string &text) {
  std::string path = testing::TempDir() + "objective.yaml";
  std::ofstream(path) << text;
  return path;
}

TEST(Options, LossesBelongToTheirObjective) {
  const auto mistakeOf = [](const std::string &text) {
    Options options;
    const Status status = options.applyYaml(writeYaml(text));
    EXPECT_TRUE(status.isOk()) << status.message();
    return options.validate().message();
  };
  EXPECT_EQ(mistakeOf("rl: dpo\nloss_type: ipo\n"), "");
  EXPECT_EQ(mistakeOf("rl: kto\nloss_type: ipo\n"),
            "loss_type ipo is not a loss of rl kto; use kto or "
            "apo_zero_unpaired");
  EXPECT_EQ(mistakeOf("loss_type: ipo\n"),
            "loss_type ipo is not a loss of --rl none; use nll or dft");
  EXPECT_EQ(mistakeOf("rl: orpo\nloss_type: ipo\n"),
            "loss_type ipo is not a loss of rl orpo; remove it");
  EXPECT_EQ(mistakeOf("loss_type: dft\n"), "");
  EXPECT_EQ(mistakeOf("rl: dpo\nloss_type: nll\n").substr(0, 36),
            "loss_type nll is not a loss of rl dp");
  EXPECT_EQ(mistakeOf("loss_type: nll\nlabel_smoothing_factor: 0.1\n"), "");
  for (const char *other : {"loss_type: dft", "rl: dpo"})
    EXPECT_EQ(
        mistakeOf("label_smoothing_factor: 0.1\n" + std::string(other) + "\n"),
        "label_smoothing_factor is only for --loss-type nll; remove it");
  EXPECT_EQ(mistakeOf("rl: dpo\nbeta: 0\nloss_type: ipo\n"),
            "beta 0 conflicts with loss_type ipo, whose target is 1 / (2 "
            "beta); use more than 0");
}

TEST(Options, SeveralLossesHaveTheirWeights) {
  const auto lossesIn = [](const std::string &text) {
    Options options;
    Status status = options.applyYaml(writeYaml(text));
    if (status.isOk())
      status = options.validate();
    const WeightedLosses losses = lossesOf(options);
    return status.isOk() ? fmt::format("{} {}", losses.words, losses.weights)
                         : status.message();
  };
  EXPECT_EQ(lossesIn("rl: dpo\n"), "[\"sigmoid\"] [1]");
  EXPECT_EQ(lossesIn("rl: dpo\nloss_type: [ipo]\n"), "[\"ipo\"] [1]");
  EXPECT_EQ(lossesIn("rl: dpo\nloss_type: sigmoid, sft\nloss_weights: [1, "
                     "0.5]\n"),
            "[\"sigmoid\", \"sft\"] [1, 0.5]");
  EXPECT_EQ(lossesIn("rl: cpo\nloss_type: simpo\ncpo_alpha: 2\n"),
            "[\"simpo\", \"sft\"] [1, 2]");
  EXPECT_EQ(lossesIn("rl: cpo\ncpo_alpha: 0\n"), "[\"sigmoid\"] [1]");
  EXPECT_EQ(lossesIn("rl: cpo\nloss_type: [ipo, hinge]\n"),
            "loss_type has 2 losses, which only rl dpo adds; keep one");
  EXPECT_EQ(lossesIn("rl: dpo\nloss_weights: [1, 2]\n"),
            "loss_weights has 2 weights, but --loss-type has 1 losses of --rl "
            "dpo; write a weight for each loss");
  EXPECT_EQ(lossesIn("rl: dpo\nloss_type: exo_pair\n"),
            "loss_type exo_pair needs more than 0 as --label-smoothing; the "
            "paper recommends 0.001");
  EXPECT_EQ(lossesIn("rl: dpo\nlabel_smoothing: 0.1\n"),
            "label_smoothing is only for --loss-type exo_pair or robust, and "
            "for sigmoid or simpo of --rl cpo; remove it");
}
