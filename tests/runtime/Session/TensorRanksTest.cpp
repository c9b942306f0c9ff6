// SPDX-License-Identifier: MIT

// Programs with two tensor-parallel ranks (UNIGRAM_TENSOR_RANKS), which have
// the same rows. They train and report exactly like a single rank.
// CudaRanksTest.cpp tests this on GPUs.

#include <gmock/gmock.h>

#include "tests/runtime/Session/MixedRowsFixture.h"

using namespace qlora;
using testing::HasSubstr;

namespace {

class TensorRanks : public MixedRows {};

/// Sums over ranks are twice a single rank's sums, but all means are equal.
TEST_F(TensorRanks, AreAsOneWithTheirRows) {
  writeMixed();
  const auto one = trainMixed(QLORA_UNIGRAM_MODULE, "one", "1");
  const auto two = trainMixed(QLORA_UNIGRAM_TENSOR_MODULE, "two", "2");
  EXPECT_EQ(lossesOf(one), lossesOf(two));
  EXPECT_EQ(adapter("one"), adapter("two"));
  for (size_t i = 0; i < one.size(); ++i)
    EXPECT_EQ(one[i].value("num_input_tokens_seen", 0),
              two[i].value("num_input_tokens_seen", 0));
}

TEST_F(TensorRanks, AreOneOfSeveralWithOtherRows) {
  writeMixed();
  const auto two = trainMixed(QLORA_UNIGRAM_MODULE, "two", "2");
  expectSame(two, trainMixed(QLORA_UNIGRAM_TENSOR_MODULE, "four", "4"));
}

TEST_F(TensorRanks, StopTogether) { stopOneOfTwo(QLORA_UNIGRAM_TENSOR_MODULE); }

/// A checkpoint's sums for the next log line count each label once.
TEST_F(TensorRanks, CountEveryLabelOnce) {
  const auto one = windowOf(QLORA_UNIGRAM_MODULE, "one", "1");
  const auto two = windowOf(QLORA_UNIGRAM_TENSOR_MODULE, "two", "2");
  EXPECT_GT(one["labels"].get<double>(), 0);
  for (const char *name : {"labels", "tokens", "loss_sum"})
    EXPECT_EQ(one[name], two[name]) << name;
  EXPECT_EQ(factsOf("one")["rows_per_step"], factsOf("two")["rows_per_step"]);
  EXPECT_EQ(factsOf("two")["ranks"], 2);
  // A single rank resumes from the checkpoint with the same rows.
  module = QLORA_UNIGRAM_MODULE;
  train("again", {"--max-steps", "4", "--logging-steps", "3",
                  "--resume-from-checkpoint", at("two/checkpoint-2")});
  EXPECT_EQ(adapter("again"), adapter("one"));
}

TEST_F(TensorRanks, DumpWhatOneRankHas) {
  train("one", {"--max-steps", "1", "--dump", at("one.safetensors")});
  module = QLORA_UNIGRAM_TENSOR_MODULE;
  train("two",
        {"--max-steps", "1", "--gpus", "2", "--dump", at("two.safetensors")});
  EXPECT_FALSE(contents(at("one.safetensors")).empty());
  EXPECT_EQ(contents(at("one.safetensors")), contents(at("two.safetensors")));
}

/// Every entry has collectives, so all ranks take part in the search for the
/// micro-batch with an infinite loss. This micro-batch has rows 4 and 5, the
/// first rows of the second step.
TEST_F(TensorRanks, FindWhereALossIsInfinite) {
  module = QLORA_UNIGRAM_TENSOR_MODULE;
  const std::string said =
      refusal({"--lr", "3e38", "--max-steps", "8", "--gpus", "4"});
  EXPECT_THAT(said,
              HasSubstr("rank 0, micro-batch 0 (rows 4, 5): the loss is"));
}

TEST_F(TensorRanks, AreRefusedByName) {
  refuseOtherRuns(QLORA_UNIGRAM_TENSOR_MODULE, "shards its matmuls", "tp");
  EXPECT_THAT(refusal({"--gpus", "3", "--device", "null"}),
              HasSubstr("but 3 were started"));
  EXPECT_THAT(refusal({}), HasSubstr("but 1 was started"));
  EXPECT_THAT(
      refusal({"--gpus", "2", "--reproducible-reductions", "true"}),
      HasSubstr("--reproducible-reductions needs ranks that each compute the "
                "gradients of whole rows, but '"));
}

TEST_F(TensorRanks, AreShownOnTheNullDevice) {
  module = QLORA_UNIGRAM_TENSOR_MODULE;
  const ProcessOutput output =
      run({"--device", "null", "--gpus", "4", "--global-batch-size", "12"});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.out,
              HasSubstr("data and tensor parallel over 2 ranks"));
  EXPECT_THAT(output.out, HasSubstr("all_gather over tp"));
  // Three accumulated micro-batches of two rows, on two pairs of ranks.
  EXPECT_THAT(output.out, HasSubstr("a step of 4 ranks: 6 micro-batches"));
}

} // namespace
