// SPDX-License-Identifier: MIT

// Runs with a fixed number of rows per step, on any number of ranks and resumed
// from a checkpoint.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

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
  // config.resolved.yaml is itself a configuration, with the derived values.
  const std::string record = at("one/config.resolved.yaml");
  EXPECT_THAT(contents(record), HasSubstr("gradient_accumulation_steps: 4\n"));
  auto again = train("again", {"--config", record});
  EXPECT_EQ(again[2]["loss"], one[2]["loss"]);
  for (const char *gpus : {"3", "2"}) {
    ProcessOutput output = run({"--config", record, "--output-dir", at("no"),
                                "--gpus", gpus});
    EXPECT_EQ(output.exitCode, 1);
    EXPECT_THAT(output.errors,
                HasSubstr(*gpus == '3' ? "use 6 or 12"
                                       : "remove one"));
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
  EXPECT_THAT(other.errors, HasSubstr("steps have 8 rows, but "
                                      "--global-batch-size is 16"));
  more.back() = "8";
  ProcessOutput same = run(more);
  EXPECT_EQ(same.exitCode, 0) << same.errors;
  EXPECT_THAT(same.out, HasSubstr("2 rows x 2 ranks x 2 accumulated = 8 rows"));
}

/// A run with steps of 4 rows (2 x 2) is resumed with other flags.
class ResumedRows : public SessionFixture {
protected:
  void SetUp() override {
    SessionFixture::SetUp();
    train("out", {"--max-steps", "2", "--save-steps", "1",
                  "--gradient-accumulation-steps", "2"});
  }
  ProcessOutput resume(std::vector<std::string> flags) {
    flags.insert(flags.end(),
                 {"--train-file", at("tokens.safetensors"), "--output-dir",
                  at("out"), "--lr", "0.05", "--max-steps", "3",
                  "--resume-from-checkpoint", at("out/checkpoint-2")});
    return run(std::move(flags));
  }
};

TEST_F(ResumedRows, AreRefusedIfOthersAreGiven) {
  for (const char *steps : {"4", "1"}) {
    const ProcessOutput output =
        resume({"--gradient-accumulation-steps", steps});
    EXPECT_EQ(output.exitCode, 1) << output.errors;
    EXPECT_THAT(output.errors,
                HasSubstr(fmt::format("the checkpoint's steps have 4 rows, but "
                                      "--gradient-accumulation-steps {0} makes "
                                      "2 rows x 1 rank x {0} accumulated",
                                      steps)));
    EXPECT_THAT(output.errors, HasSubstr("Fix: leave the option out"));
    EXPECT_FALSE(std::filesystem::exists(at("out/checkpoint-3")));
  }
}

TEST_F(ResumedRows, FollowFromTheCheckpointIfNoneAreGiven) {
  const ProcessOutput output = resume({});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.out, HasSubstr("2 rows x 1 rank x 2 accumulated"));
  EXPECT_THAT(contents(at("out/config.resolved.yaml")),
              HasSubstr("gradient_accumulation_steps: 2\n"));
}

TEST_F(ResumedRows, AreSharedByOtherRanksWithTheSameOptions) {
  const std::vector<std::string> same = {"--gradient-accumulation-steps", "2"};
  std::vector<std::string> two = same;
  two.insert(two.end(), {"--gpus", "2"});
  ProcessOutput output = resume(two);
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.out, HasSubstr("2 rows x 2 ranks x 1 accumulated"));
  EXPECT_THAT(output.errors,
              HasSubstr("--gradient-accumulation-steps changes from 2 to 1: a "
                        "step still has 4 rows, on 2 ranks"));
  output = resume(same);
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.out, HasSubstr("2 rows x 1 rank x 2 accumulated"));
}

TEST_F(ResumedRows, ComeFromTheAdapterThatTheTrainingBeganWith) {
  train("start", {"--max-steps", "1", "--lr", "0.5"});
  const ProcessOutput output = resume({"--adapter-name-or-path", at("start")});
  EXPECT_EQ(output.exitCode, 1) << output.errors;
  EXPECT_THAT(output.errors,
              HasSubstr("the checkpoint's run started from no adapter, but "
                        "--adapter-name-or-path '"));
  const std::vector<std::string> flags = {"--adapter-name-or-path", at("start"),
                                          "--max-steps", "2"};
  train("on", flags);
  std::vector<std::string> again = flags;
  again.insert(again.end(), {"--resume-from-checkpoint", "latest"});
  train("on", again);
  std::filesystem::remove_all(at("start"));
  train("on", again); // the checkpoint contains the trained adapter
}

TEST_F(ResumedRows, AreComputedByTheThreadsOfTheEnvironment) {
  setenv("OMP_NUM_THREADS", "3", 1);
  const ProcessOutput output = resume({});
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.errors, HasSubstr("another number of threads"));
}
