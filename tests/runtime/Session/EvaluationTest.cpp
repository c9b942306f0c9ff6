// SPDX-License-Identifier: MIT

// Reports of evaluations.

#include <gtest/gtest.h>

#include "runtime/Session/Evaluation.h"

using namespace qlora;
using nlohmann::ordered_json;

TEST(Evaluation, LeavesOutAnswersOfWhichThereAreNone) {
  EvaluationResult result;
  result.sums.setPresent(QLORA_RESULT_CHOSEN_COUNT);
  const ordered_json chosen = {{"eval_rewards/chosen", 0.5}};
  const ordered_json rejected = {{"eval_rewards/rejected", -0.25}};
  ordered_json both = chosen;
  both.update(rejected);
  EXPECT_EQ(measureOf(both, result),
            "rewards 0.5000 desirable, -0.2500 undesirable");
  EXPECT_EQ(measureOf(chosen, result), "rewards 0.5000 desirable");
  EXPECT_EQ(measureOf(rejected, result), "rewards -0.2500 undesirable");
}

TEST(Evaluation, NamesAPerplexityOnlyIfThereIsOne) {
  EvaluationResult result;
  result.perplexity = 8.25;
  EXPECT_EQ(measureOf({{"eval_perplexity", 8.25}}, result), "perplexity 8.25");
  EXPECT_EQ(measureOf({{"eval_loss", 0.02}}, result), "");
}
