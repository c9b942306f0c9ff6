// SPDX-License-Identifier: MIT

// A program with two stages (UnigramPipelineModule.c). Both ranks have the same
// rows, and together train exactly like a single rank.

#include <gmock/gmock.h>

#include "tests/runtime/Session/MixedRowsFixture.h"

using namespace qlora;
using testing::HasSubstr;

namespace {

class Pipeline : public MixedRows {};

/// Only the second stage adds to the sums, including losses and label counts.
TEST_F(Pipeline, IsAsOneRankWithItsRows) {
  writeMixed();
  const auto one = trainMixed(QLORA_UNIGRAM_MODULE, "one", "1");
  const auto two = trainMixed(QLORA_UNIGRAM_PIPELINE_MODULE, "two", "2");
  EXPECT_EQ(lossesOf(one), lossesOf(two));
  EXPECT_EQ(adapter("one"), adapter("two"));
  expectSame(one, two);
}

TEST_F(Pipeline, IsOneOfSeveralWithOtherRows) {
  writeMixed();
  const auto two = trainMixed(QLORA_UNIGRAM_MODULE, "two", "2");
  expectSame(two, trainMixed(QLORA_UNIGRAM_PIPELINE_MODULE, "four", "4"));
}

TEST_F(Pipeline, StopsTogether) { stopOneOfTwo(QLORA_UNIGRAM_PIPELINE_MODULE); }

/// Checkpoints do not depend on stages.
TEST_F(Pipeline, CountsEveryLabelOnceAndGoesOnWithoutStages) {
  const auto one = windowOf(QLORA_UNIGRAM_MODULE, "one", "1");
  const auto two = windowOf(QLORA_UNIGRAM_PIPELINE_MODULE, "two", "2");
  EXPECT_GT(one["labels"].get<double>(), 0);
  for (const char *name : {"labels", "tokens", "loss_sum"})
    EXPECT_EQ(one[name], two[name]) << name;
  EXPECT_EQ(factsOf("one")["rows_per_step"], factsOf("two")["rows_per_step"]);
  EXPECT_EQ(factsOf("two")["ranks"], 2);
  for (const auto &[program, gpus, from] :
       {std::tuple(QLORA_UNIGRAM_MODULE, "1", "two/checkpoint-2"),
        {QLORA_UNIGRAM_PIPELINE_MODULE, "2", "one/checkpoint-2"}}) {
    module = program;
    train("again", {"--max-steps", "4", "--logging-steps", "3", "--gpus", gpus,
                    "--resume-from-checkpoint", at(from)});
    EXPECT_EQ(adapter("again"), adapter("one"));
    std::filesystem::remove_all(folder / "again");
  }
}

TEST_F(Pipeline, DumpsWhatOneRankHas) {
  train("one", {"--max-steps", "1", "--dump", at("one.safetensors")});
  module = QLORA_UNIGRAM_PIPELINE_MODULE;
  train("two",
        {"--max-steps", "1", "--gpus", "2", "--dump", at("two.safetensors")});
  EXPECT_FALSE(contents(at("one.safetensors")).empty());
  EXPECT_EQ(contents(at("one.safetensors")), contents(at("two.safetensors")));
}

TEST_F(Pipeline, FindsWhereALossIsInfinite) {
  module = QLORA_UNIGRAM_PIPELINE_MODULE;
  const std::string said =
      refusal({"--lr", "3e38", "--max-steps", "8", "--gpus", "4"});
  EXPECT_THAT(said,
              HasSubstr("rank 2, micro-batch 0 (rows 4, 5): the loss is"));
}

TEST_F(Pipeline, IsRefusedByName) {
  refuseOtherRuns(QLORA_UNIGRAM_PIPELINE_MODULE, "distributes its layers",
                  "pp");
}

TEST_F(Pipeline, IsShownOnTheNullDevice) {
  module = QLORA_UNIGRAM_PIPELINE_MODULE;
  const ProcessOutput output =
      run({"--device", "null", "--gpus", "4", "--global-batch-size", "12"});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  // The second stage has more frozen weights.
  EXPECT_THAT(output.out, HasSubstr("data and pipeline parallel, 2 stages; "
                                    "stage 1: one shared base (128 B)"));
  EXPECT_THAT(output.out, HasSubstr("plans of stages: 0 "));
  EXPECT_THAT(output.out, HasSubstr("recv over pp: 64 B"));
  EXPECT_THAT(output.out, HasSubstr("a step of 4 ranks: 6 micro-batches"));
}

} // namespace
