// SPDX-License-Identifier: MIT

// Rows per step: derived values, and contradictions.

#include "runtime/Options/StepRows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace qlora;
using testing::ElementsAre;

static Options optionsOf(
    std::initializer_list<std::pair<const char *, const char *>> flags,
    const char *recorded = nullptr) {
  Options options;
  if (recorded) {
    EXPECT_TRUE(options.applyRecorded(recorded).isOk());
  }
  for (const auto &[name, text] : flags) {
    const OptionSetting setting = {findOption(optionTable(), name), text,
                                   flagSpelling(name)};
    const Status status = options.applySettings({&setting, 1});
    EXPECT_TRUE(status.isOk()) << status.message();
  }
  return options;
}

static constexpr const char *kGlobal = "global_batch_size";
static constexpr const char *kBatch = "per_device_train_batch_size";
static constexpr const char *kSteps = "gradient_accumulation_steps";

TEST(StepRows, FollowFromTheGlobalBatch) {
  EXPECT_EQ(*accumulationSteps(optionsOf({{kSteps, "3"}}), 2), 3);
  const Options options = optionsOf({{kGlobal, "64"}, {kBatch, "4"}});
  EXPECT_EQ(*accumulationSteps(options, 1), 16);
  EXPECT_EQ(*accumulationSteps(options, 2), 8);
  EXPECT_EQ(*accumulationSteps(
                optionsOf({{kGlobal, "64"}, {kBatch, "4"}, {kSteps, "auto"}}),
                2),
            8);
  EXPECT_EQ(stepRowsText(4, 2, 8),
            "4 rows x 2 ranks x 8 accumulated = 64 rows a step");
}

TEST(StepRows, WhatCannotBeSharedNamesWhatCan) {
  const Options options = optionsOf({{kGlobal, "64"}, {kBatch, "4"}});
  EXPECT_EQ(accumulationSteps(options, 3).status().message(),
            "--global-batch-size 64 is not a multiple of 3 ranks x 4 rows; use "
            "60 or 72");
  EXPECT_EQ(accumulationSteps(options, 32).status().message(),
            "--global-batch-size 64 is not a multiple of 32 ranks x 4 rows; "
            "use 128");
}

TEST(StepRows, BothMustAgree) {
  EXPECT_EQ(*accumulationSteps(
                optionsOf({{kGlobal, "8"}, {kBatch, "2"}, {kSteps, "4"}}), 1),
            4);
  EXPECT_EQ(accumulationSteps(
                optionsOf({{kGlobal, "8"}, {kBatch, "2"}, {kSteps, "1"}}), 1)
                .status()
                .message(),
            "--global-batch-size 8 is 2 rows x 1 rank x 4 accumulated = 8 rows "
            "a step, but --gradient-accumulation-steps is 1; remove one");
}

TEST(StepRows, ARunOverridesWhatItsProgramRecords) {
  const char *three = R"({"per_device_train_batch_size": 2,
                          "gradient_accumulation_steps": 3})";
  EXPECT_EQ(*accumulationSteps(optionsOf({{kGlobal, "8"}}, three), 1), 4);
  // The recorded value 1 is a default that the user did not set, so 4 steps do
  // not contradict it.
  const char *one = R"({"per_device_train_batch_size": 2,
                        "global_batch_size": 8,
                        "gradient_accumulation_steps": 1})";
  EXPECT_EQ(*accumulationSteps(optionsOf({}, one), 1), 4);
  EXPECT_FALSE(accumulationSteps(optionsOf({{kSteps, "3"}}, one), 1).isOk());
  EXPECT_EQ(*accumulationSteps(optionsOf({{kSteps, "3"}, {kGlobal, "0"}}, one),
                               1),
            3);
}

TEST(StepRows, AutoNeedsAGlobalBatch) {
  EXPECT_EQ(optionsOf({{kSteps, "auto"}}).validate().message(),
            "--gradient-accumulation-steps auto is computed from "
            "--global-batch-size; add that");
  EXPECT_TRUE(optionsOf({{kSteps, "auto"}, {kGlobal, "4"}}).validate().isOk());
}

TEST(StepRows, BatchesToLookAt) {
  EXPECT_THAT(*batchCandidates(optionsOf({}), 1),
              ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_THAT(*batchCandidates(optionsOf({{kBatch, "12"}}), 2),
              ElementsAre(1, 3, 6, 12));
  EXPECT_THAT(*batchCandidates(optionsOf({{kGlobal, "24"}}), 2),
              ElementsAre(1, 2, 3, 4, 6, 12));
  EXPECT_THAT(*batchCandidates(optionsOf({{kGlobal, "256"}}), 1),
              ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_THAT(
      *batchCandidates(optionsOf({{kGlobal, "24"}, {kBatch, "4"}}), 1),
      ElementsAre(1, 2, 3, 4));
  EXPECT_FALSE(batchCandidates(optionsOf({{kGlobal, "25"}}), 2).isOk());
  EXPECT_FALSE(
      batchCandidates(optionsOf({{kGlobal, "24"}, {kSteps, "2"}}), 1).isOk());
}

TEST(StepRows, AFoundBatchIsAtMostWhatWasAskedFor) {
  const char *found = R"({"auto_find_batch_size": true,
                          "per_device_train_batch_size": 4})";
  EXPECT_EQ(optionsOf({{kBatch, "8"}}, found).integer(kBatch), 4);
  Options options = optionsOf({}, found);
  const OptionSetting less = {findOption(optionTable(), kBatch), "2", kBatch};
  EXPECT_FALSE(options.applySettings({&less, 1}).isOk());
}
