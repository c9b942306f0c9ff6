// SPDX-License-Identifier: MIT

// Programs with two context-parallel ranks (UNIGRAM_CONTEXT_RANKS). Each rank
// has half of every sequence's tokens. Both ranks together train exactly like a
// single rank.

#include <gmock/gmock.h>

#include "tests/runtime/Session/MixedRowsFixture.h"

using namespace qlora;
using testing::HasSubstr;

namespace {

class ContextRanks : public MixedRows {};

TEST_F(ContextRanks, AreAsOneWithTheirLines) {
  writeMixed();
  const auto one = trainMixed(QLORA_UNIGRAM_MODULE, "one", "1");
  expectSame(one, trainMixed(QLORA_UNIGRAM_CONTEXT_MODULE, "two", "2"));
}

TEST_F(ContextRanks, AreOneOfSeveralWithOtherLines) {
  writeMixed();
  const auto two = trainMixed(QLORA_UNIGRAM_MODULE, "two", "2");
  expectSame(two, trainMixed(QLORA_UNIGRAM_CONTEXT_MODULE, "four", "4"));
}

/// An exact match requires matches in all cp shards. Some sequences match
/// completely, some only in one shard.
TEST_F(ContextRanks, FindWholeLinesRight) {
  writeMixed();
  const auto evaluated = [&](const char *program, const char *out,
                             const char *gpus) {
    module = program;
    auto flags = mixed(out, gpus);
    *std::next(std::ranges::find(flags, "--max-steps")) = "24";
    const ProcessOutput output = run(flags);
    EXPECT_EQ(output.exitCode, 0) << output.errors;
    return metrics(out);
  };
  const auto one = evaluated(QLORA_UNIGRAM_MODULE, "one", "1");
  expectSame(one, evaluated(QLORA_UNIGRAM_CONTEXT_MODULE, "two", "2"));
  EXPECT_TRUE(std::ranges::any_of(one, [](const nlohmann::json &line) {
    const double right = line.value("eval_exact_match", 0.0);
    return right > 0 && right < line.value("eval_token_accuracy", 0.0);
  }));
}

TEST_F(ContextRanks, StopTogether) {
  stopOneOfTwo(QLORA_UNIGRAM_CONTEXT_MODULE);
}

/// A checkpoint's sums for the next log line count each label once, although
/// each of two ranks has half of the sequence.
TEST_F(ContextRanks, CountEveryLabelOnce) {
  const auto one = windowOf(QLORA_UNIGRAM_MODULE, "one", "1");
  const auto two = windowOf(QLORA_UNIGRAM_CONTEXT_MODULE, "two", "2");
  EXPECT_GT(one["labels"].get<double>(), 0);
  for (const char *name : {"labels", "tokens"})
    EXPECT_EQ(one[name], two[name]) << name;
  EXPECT_NEAR(one["loss_sum"].get<double>(), two["loss_sum"].get<double>(),
              1e-6);
  EXPECT_EQ(factsOf("one")["rows_per_step"], factsOf("two")["rows_per_step"]);
  EXPECT_EQ(factsOf("two")["ranks"], 2);
}

TEST_F(ContextRanks, FindWhereALossIsInfinite) {
  module = QLORA_UNIGRAM_CONTEXT_MODULE;
  const std::string said =
      refusal({"--lr", "3e38", "--max-steps", "8", "--gpus", "4"});
  EXPECT_THAT(said, HasSubstr("micro-batch 0 (rows 4, 5): the loss is"));
}

TEST_F(ContextRanks, AreRefusedByName) {
  refuseOtherRuns(QLORA_UNIGRAM_CONTEXT_MODULE, "shards each sequence", "cp");
}

TEST_F(ContextRanks, AreShownOnTheNullDevice) {
  module = QLORA_UNIGRAM_CONTEXT_MODULE;
  const ProcessOutput output =
      run({"--device", "null", "--gpus", "4", "--global-batch-size", "12"});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.out, HasSubstr("data and context parallel over 2 ranks"));
  EXPECT_THAT(output.out, HasSubstr("all_gather over cp"));
  EXPECT_THAT(output.out, HasSubstr("a step of 4 ranks: 6 micro-batches"));
}

} // namespace
