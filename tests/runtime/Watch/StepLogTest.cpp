// SPDX-License-Identifier: MIT

// A checkpoint has the log's state, so that a resumed run continues the log.

#include <gtest/gtest.h>

#include "runtime/Watch/StepLog.h"

using namespace qlora;
using nlohmann::ordered_json;

TEST(StepLog, GoesOnFromPairsOfEarlierCheckpoints) {
  const ordered_json pairs = {{"count", 4.0},
                              {"sums", {1.0, 2.0, 3.0, 4.0, 5.0}}};
  const ordered_json preferences = {{"count", 4.0},
                                    {"sums", {1.0, 2.0, 3.0, 4.0, 5.0}}};
  EXPECT_EQ(withPreferences({{"pairs", pairs}})["preferences"], preferences);
  for (const ordered_json &own :
       {ordered_json{{"pairs", nullptr}}, ordered_json{{"steps", 2}},
        ordered_json{{"preferences", preferences}}})
    EXPECT_EQ(withPreferences(own), own);
}

TEST(StepLog, LogsTheOddsOnlyIfTheProgramHasThem) {
  LossSums sums;
  sums.setPresent(QLORA_RESULT_RIGHT_PAIRS);
  sums[QLORA_RESULT_LABEL_COUNT] = 4;
  sums[QLORA_RESULT_RIGHT_PAIRS] = 3;
  sums[QLORA_RESULT_LOG_ODDS] = -2;
  ordered_json dpo, orpo;
  addSums(dpo, "eval_", sums, 0);
  sums.setPresent(QLORA_RESULT_LOG_ODDS);
  addSums(orpo, "eval_", sums, 0);
  EXPECT_EQ(dpo["eval_rewards/accuracies"], 0.75);
  EXPECT_FALSE(dpo.contains("eval_log_odds_chosen"));
  EXPECT_EQ(orpo["eval_log_odds_chosen"], -0.5);
}
