// SPDX-License-Identifier: MIT

// Programs whose entries all have collectives (UNIGRAM_SHARDS). Ranks run the
// same entries at the same time, even if their data or signals differ. They
// compute the same results as a single rank. CudaRanksTest.cpp tests this on
// GPUs.

#include <gmock/gmock.h>
#include "tests/runtime/Session/MixedRowsFixture.h"

using namespace qlora;
using testing::HasSubstr;

namespace {

using Shards = MixedRows;

TEST_F(Shards, AreInLockstepWhateverTheirData) {
  writeMixed();
  for (const char *gpus : {"2", "4"}) {
    const auto whole = trainMixed(QLORA_UNIGRAM_MODULE, "whole", gpus);
    const auto divided =
        trainMixed(QLORA_UNIGRAM_SHARDS_MODULE, "divided", gpus);
    EXPECT_EQ(lossesOf(whole), lossesOf(divided)) << gpus;
    EXPECT_EQ(adapter("whole"), adapter("divided")) << gpus;
    std::filesystem::remove_all(folder / "whole");
    std::filesystem::remove_all(folder / "divided");
  }
}

TEST_F(Shards, AreRefusedWhereTheyAreNoGroups) {
  module = QLORA_UNIGRAM_SHARDS_MODULE;
  const auto refusal = [&](const char *gpus, std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--gpus", gpus});
    const ProcessOutput output = run(flags);
    EXPECT_EQ(output.exitCode, 1) << output.out;
    EXPECT_FALSE(std::filesystem::exists(folder / "out"));
    EXPECT_EQ(std::ranges::count(output.errors, '\n'), 1) << output.errors;
    return output.errors;
  };
  const std::vector<std::string> training = {
      "--train-file", at("tokens.safetensors"), "--output-dir", at("out")};
  EXPECT_THAT(
      refusal("3", training),
      HasSubstr("shards its base over 2 ranks, but 3 were started; start a "
                "multiple of 2, or compile with another --parallel fsdp=N"));
  EXPECT_THAT(refusal("1", training), HasSubstr("but 1 was started"));
  EXPECT_THAT(refusal("3", {"--device", "null"}),
              HasSubstr("but 3 were started; start a multiple of 2"));
  const ProcessOutput output = run({"--device", "null", "--gpus", "6"});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
}

TEST_F(Shards, StopTogether) { stopOneOfTwo(QLORA_UNIGRAM_SHARDS_MODULE); }

} // namespace
