// SPDX-License-Identifier: MIT

// Runs that are told the rows of a step, on any number of ranks and from a
// checkpoint.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/Session/SessionFixture.h"

using namespace qlora;
using testing::HasSubstr;
using GlobalBatch = SessionFixture;

TEST_F(GlobalBatch, IsTheSameStepOnAnyNumberOfRanks) {
  auto one = train("one", {"--max-steps", "3", "--global-batch-size", "8"});
  auto four = train("four", {"--max-steps", "3", "--gpus", "4",
                             "--global-batch-size", "8",
                             "--gradient-accumulation-steps", "auto"});
  auto same = train("same", {"--max-steps", "3",
                             "--gradient-accumulation-steps", "4"});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(one[i]["loss"], same[i]["loss"]);
    EXPECT_NEAR(one[i]["loss"], four[i]["loss"], 1e-6);
  }
  // The record is a configuration again, which says what it came to.
  const std::string record = at("one/config.resolved.yaml");
  EXPECT_THAT(contents(record), HasSubstr("gradient_accumulation_steps: 4\n"));
  auto again = train("again", {"--config", record});
  EXPECT_EQ(again[2]["loss"], one[2]["loss"]);
  for (const char *gpus : {"3", "2"}) {
    ProcessOutput output = run({"--config", record, "--output-dir", at("no"),
                                "--gpus", gpus});
    EXPECT_EQ(output.exitCode, 1);
    EXPECT_THAT(output.errors,
                HasSubstr(*gpus == '3' ? "the nearest that can are 6 and 12"
                                       : "leave one of them out"));
  }
}

TEST_F(GlobalBatch, AResumedRunKeepsTheRowsOfItsSteps) {
  const std::vector<std::string> flags = {"--max-steps", "2", "--save-steps",
                                          "1", "--global-batch-size", "8"};
  train("out", flags);
  std::vector<std::string> more = {
      "--train-file", at("tokens.safetensors"), "--output-dir", at("out"),
      "--lr", "0.05", "--max-steps", "3", "--resume-from-checkpoint", "latest",
      "--gpus", "2", "--global-batch-size", "16"};
  ProcessOutput other = run(more);
  EXPECT_EQ(other.exitCode, 1);
  EXPECT_THAT(other.errors, HasSubstr("steps have 8 rows, and "
                                      "--global-batch-size is 16"));
  more.back() = "8";
  ProcessOutput same = run(more);
  EXPECT_EQ(same.exitCode, 0) << same.errors;
  EXPECT_THAT(same.out, HasSubstr("2 rows x 2 ranks x 2 accumulated = 8 rows"));
}
