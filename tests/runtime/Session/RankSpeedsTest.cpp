// SPDX-License-Identifier: MIT

// Ranks of different speeds: given speeds, predicted speeds, and steps whose
// results do not depend on which rank computes which micro-batch.

#include "runtime/Session/RankSpeeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/Kernels/DeviceProfile.h"
#include "tests/runtime/Session/SessionFixture.h"

using namespace qlora;
using testing::HasSubstr;
using RankSpeeds = SessionFixture;

TEST_F(RankSpeeds, AStepIsTheSameWhoeverDoesIt) {
  const std::vector<std::string> flags = {
      "--max-steps", "3", "--gpus", "2", "--gradient-accumulation-steps", "4"};
  auto even = train("even", flags);
  auto told = flags;
  told.insert(told.end(), {"--rank-speeds", "3", "1", "--save-steps", "2"});
  auto uneven = train("uneven", told);
  ASSERT_EQ(even.size(), uneven.size());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(even[i]["loss"], uneven[i]["loss"], 1e-6);
    EXPECT_EQ(even[i]["tokens"], uneven[i]["tokens"]);
  }
  auto again = train("again", told);
  EXPECT_EQ(adapter("again"), adapter("uneven"));
  // Equal speeds do not change the results.
  told = flags;
  told.insert(told.end(), {"--rank-speeds", "5", "5"});
  train("same", told);
  EXPECT_EQ(adapter("same"), adapter("even"));
}

TEST_F(RankSpeeds, RowsOfLinesAreDealtToo) {
  const auto onRows = [&](const char *out, std::vector<std::string> speeds) {
    std::vector<std::string> flags = {"--train-file",
                                      at("rows.safetensors"),
                                      "--output-dir",
                                      at(out),
                                      "--max-steps",
                                      "2",
                                      "--gpus",
                                      "2",
                                      "--gradient-accumulation-steps",
                                      "2"};
    flags.insert(flags.end(), speeds.begin(), speeds.end());
    ProcessOutput output = run(flags);
    EXPECT_EQ(output.exitCode, 0) << output.errors;
    return std::pair(metrics(out), output.out);
  };
  const auto [even, quiet] = onRows("even", {});
  const auto [uneven, header] = onRows("uneven", {"--rank-speeds", "1,9"});
  EXPECT_THAT(header, HasSubstr("by their speed, ranks get 1, 3 of its 4 "
                                "micro-batches"));
  EXPECT_THAT(quiet, testing::Not(HasSubstr("by their speed")));
  EXPECT_NEAR(even[1]["loss"], uneven[1]["loss"], 1e-6);
}

TEST_F(RankSpeeds, ARunThatGoesOnWithOthersSaysSo) {
  std::vector<std::string> flags = {"--train-file", at("tokens.safetensors"),
                                    "--output-dir", at("out"),
                                    "--gpus", "2",
                                    "--gradient-accumulation-steps", "4",
                                    "--save-steps", "1", "--max-steps", "1"};
  ASSERT_EQ(run(flags).exitCode, 0);
  flags.back() = "2";
  flags.insert(flags.end(),
               {"--resume-from-checkpoint", "latest", "--rank-speeds", "3,1"});
  const ProcessOutput output = run(flags);
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.out + output.errors, HasSubstr("other rank speeds"));
}

TEST_F(RankSpeeds, NumbersThatDoNotFitAreRefused) {
  const auto refused = [&](const char *speeds) {
    const ProcessOutput output =
        run({"--train-file", at("tokens.safetensors"), "--output-dir",
             at("no"), "--max-steps", "1", "--gpus", "2", "--rank-speeds",
             speeds});
    EXPECT_EQ(output.exitCode, 1);
    return output.errors;
  };
  EXPECT_THAT(refused("3"), HasSubstr("has 1 number for 2 ranks"));
  EXPECT_THAT(refused("1,2,3"), HasSubstr("has 3 numbers for 2 ranks"));
  EXPECT_THAT(refused("1,0"), HasSubstr("--rank-speeds"));
}

TEST(PredictedSpeeds, GpusAreFoundByTheNamesOfTheirDrivers) {
  EXPECT_TRUE(profileOfGpu("NVIDIA H100 80GB HBM3"));
  EXPECT_EQ(profileOfGpu("NVIDIA A100-SXM4-80GB")->cpu,
            "NVIDIA A100 SXM 80 GB");
  EXPECT_EQ(profileOfGpu("NVIDIA GeForce RTX 4090")->cpu,
            "NVIDIA GeForce RTX 4090");
  EXPECT_EQ(profileOfGpu("NVIDIA A100-SXM4-40GB")->cpu,
            "NVIDIA A100 SXM 40 GB");
  EXPECT_EQ(profileOfGpu("NVIDIA L40S")->cpu, "NVIDIA L40S");
  EXPECT_EQ(profileOfGpu("NVIDIA L4")->cpu, "NVIDIA L4");
  EXPECT_EQ(profileOfGpu("NVIDIA RTX PRO 6000 Blackwell Workstation Edition")
                ->gpu->memoryGb,
            96);
  for (const char *other :
       {"NVIDIA H100 PCIe", "NVIDIA H100 NVL", "Software sm_90",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti", "NVIDIA A10G", "NVIDIA L40",
        "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"})
    EXPECT_FALSE(profileOfGpu(other)) << other;
  EXPECT_FALSE(profileOfGpu(""));
}

TEST(PredictedSpeeds, AreThoseOfTheGpus) {
  auto module = LoadedModule::open(QLORA_UNIGRAM_CUDA_MODULE);
  ASSERT_TRUE(module.isOk()) << module.status().message();
  const auto speedsOn = [&](const std::vector<std::string> &gpus) {
    std::vector<std::string> words;
    for (const std::string &gpu : gpus)
      words.push_back(speedReport(gpu, *module));
    return speedsFromReports(words);
  };
  const PredictedSpeeds none = speedsOn({"NVIDIA H200", "NVIDIA H200"});
  EXPECT_TRUE(none.speeds.empty() && none.remark.empty());
  const PredictedSpeeds known =
      speedsOn({"NVIDIA H200", "NVIDIA GeForce RTX 4090", "NVIDIA H200"});
  ASSERT_EQ(known.speeds.size(), 3u);
  EXPECT_EQ(known.speeds[0], known.speeds[2]);
  EXPECT_GT(known.speeds[0], known.speeds[1]);
  const PredictedSpeeds unknown = speedsOn({"NVIDIA H200", "Acme 1"});
  EXPECT_TRUE(unknown.speeds.empty());
  EXPECT_THAT(unknown.remark, HasSubstr("the speed of 'Acme 1' is not known"));
  const PredictedSpeeds alike = speedsOn({"Acme 1", "Acme 1"});
  EXPECT_TRUE(alike.speeds.empty() && alike.remark.empty());
}

/// A rank with a separate plan reports the plan's predicted time, from which
/// all ranks compute the speeds.
TEST(PredictedSpeeds, AreWhatRanksSay) {
  const PredictedSpeeds said = speedsFromReports({"A\n0x1p-1", "A\n0x1p+0"});
  EXPECT_EQ(said.speeds, (std::vector<double>{2, 1}));
}
