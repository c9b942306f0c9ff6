// SPDX-License-Identifier: MIT

// Several ranks, each with a GPU, on the software platform. Results equal those
// of CPU ranks. If NCCL, a GPU or a rank fails, the job ends soon with one line
// that names the cause, and leaves no processes or files.

#include "tests/runtime/Session/CudaRanksFixture.h"

namespace qlora {
namespace {

TEST_F(CudaRanks, TrainAsOnTheCpuAndAsOneRankThatAccumulates) {
  const char *const splits[][2] = {{"1", "4"}, {"2", "2"}, {"4", "1"}};
  std::vector<std::string> flags = {"--max-steps", "6", "--logging-steps", "1"};
  auto onCpu = flags;
  onCpu.insert(onCpu.end(), {"--gradient-accumulation-steps", "4"});
  const auto expected = trainOnCpu("cpu", onCpu);
  for (const auto &[ranks, accumulation] : splits)
    for (const char *graphs : {"true", "false"}) {
      auto split = flags;
      split.insert(split.end(),
                   {"--gpus", ranks, "--gradient-accumulation-steps",
                    accumulation, "--cuda-graphs", graphs,
                    "--overwrite-output-dir"});
      const auto lines = train("cuda", split);
      ASSERT_EQ(lines.size(), expected.size());
      for (size_t i = 0; i < lines.size(); ++i)
        for (const char *key : {"loss", "grad_norm"}) {
          if (!expected[i].contains(key))
            continue;
          EXPECT_NEAR(lines[i][key].get<double>(),
                      expected[i][key].get<double>(), 1e-6)
              << key << " of line " << i << " on " << ranks << " ranks";
        }
    }
}

/// Pairs of ranks shard the frozen weights and all-gather in every entry. All
/// ranks all-reduce gradients.
TEST_F(CudaRanks, HoldABaseTogetherInGroups) {
  std::vector<std::string> flags = {
      "--max-steps", "5", "--gpus", "4", "--gradient-accumulation-steps", "2"};
  const auto expected = trainOnCpu("cpu", flags);
  module = QLORA_UNIGRAM_CUDA_SHARDS_MODULE;
  flags.insert(flags.end(), {"--overwrite-output-dir", "--cuda-graphs", ""});
  for (const char *graphs : {"true", "false"}) {
    flags.back() = graphs;
    const auto lines = train("cuda", flags);
    ASSERT_EQ(lines.size(), expected.size());
    for (size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(lines[i]["loss"].get<double>(),
                  expected[i]["loss"].get<double>(), 1e-6);
  }
  set("QLORA_TEST_CUDA_FAIL", "ncclCommSplit:1:2@1");
  EXPECT_HAS(refusal({"--gpus", "4", "--max-steps", "4"}), "ncclCommSplit");
  set("QLORA_TEST_CUDA_FAIL", "ncclCommSplit:1:kill@2");
  EXPECT_HAS(refusal({"--gpus", "4", "--max-steps", "4"}, 137),
             "rank 2: was killed by signal 9");
  // The fourth rank, in the second group, is killed.
  set("QLORA_TEST_CUDA_FAIL", "ncclAllGather:9:kill@3");
  EXPECT_HAS(
      refusal({"--gpus", "4", "--max-steps", "8", "--cuda-graphs", "false"},
              137),
      "rank 3: was killed by signal 9");
}

/// Pairs of ranks have the same rows. All ranks all-reduce gradients.
TEST_F(CudaRanks, ShareProductsOrLinesInGroups) {
  const auto expected =
      trainOnCpu("cpu", {"--max-steps", "5", "--gpus", "2",
                         "--gradient-accumulation-steps", "2"});
  for (const auto &[program, graphs] :
       {std::pair(QLORA_UNIGRAM_CUDA_TENSOR_MODULE, "true"),
        {QLORA_UNIGRAM_CUDA_TENSOR_MODULE, "false"},
        {QLORA_UNIGRAM_CUDA_CONTEXT_MODULE, "true"},
        {QLORA_UNIGRAM_CUDA_CONTEXT_MODULE, "false"}}) {
    module = program;
    const auto lines =
        train("cuda", {"--max-steps", "5", "--gpus", "4",
                       "--gradient-accumulation-steps", "2",
                       "--overwrite-output-dir", "--cuda-graphs", graphs});
    ASSERT_EQ(lines.size(), expected.size());
    for (size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(lines[i]["loss"].get<double>(),
                  expected[i]["loss"].get<double>(), 1e-6);
  }
}

TEST_F(CudaRanks, HaveTheSameBitsInEveryOrder) {
  train("first", {"--gpus", "2", "--max-steps", "8"});
  for (const char *seed : {"2", "3", "4", "5"}) {
    set("QLORA_TEST_CUDA_SEED", seed);
    train("again",
          {"--gpus", "2", "--max-steps", "8", "--overwrite-output-dir"});
    EXPECT_EQ(adapter("again"), adapter("first")) << "seed " << seed;
  }
}

TEST_F(CudaRanks, AddUpInsideOfTheGraphToTheSameBits) {
  const auto few = calls("4");
  const auto many = calls("14");
  ASSERT_EQ(few.size(), 2u);
  ASSERT_EQ(many.size(), 2u);
  for (size_t rank = 0; rank < 2; ++rank) {
    auto more = [&](const char *name) {
      return many[rank].value(name, 0) - few[rank].value(name, 0);
    };
    EXPECT_EQ(more("cuGraphLaunch"), 10 * 2);
    EXPECT_EQ(more("cuLaunchKernel"), 0);
    EXPECT_EQ(more("ncclAllReduce"), 0);
    EXPECT_EQ(more("host waits"), 0); // the host polls
    EXPECT_EQ(many[rank].value("ncclCommDestroy", 0), 1);
    EXPECT_EQ(many[rank].value("ncclCommAbort", 0), 0);
  }
  // The adapter and its moments have 128 bytes each and are equal on both
  // ranks. The tokens have 256 bytes and differ.
  ASSERT_TRUE(many[0].contains("bits of 128 bytes"));
  EXPECT_EQ(many[0]["bits of 128 bytes"], many[1]["bits of 128 bytes"]);
  EXPECT_NE(many[0]["bits of 256 bytes"], many[1]["bits of 256 bytes"]);
}

TEST_F(CudaRanks, FailingToLeaveTheGroupIsNoFailure) {
  for (const char *call : {"ncclCommFinalize", "ncclCommDestroy"}) {
    set("QLORA_TEST_CUDA_FAIL", std::string(call) + ":1:2@1");
    train("out", {"--gpus", "2", "--max-steps", "2", "--overwrite-output-dir"});
  }
}

TEST_F(CudaRanks, AnErrorThatNcclTellsLaterEndsTheJob) {
  for (const char *graphs : {"true", "false"})
    for (const auto &[value, name] :
         {std::pair{"2:1@1", "ncclUnhandledCudaError (1)"},
          std::pair{"5:2@1", "ncclSystemError (2)"},
          std::pair{"3:3", "ncclInternalError (3)"},
          std::pair{"1:6", "ncclRemoteError (6)"}})
      EXPECT_HAS(failureWith("QLORA_TEST_CUDA_ASYNC", value,
                             {"--cuda-graphs", graphs}),
                 name);
}

TEST_F(CudaRanks, AHangingCollectiveEndsAtTheTimeout) {
  for (const char *value : {"1", "3@1", "5@0"})
    EXPECT_HAS(
        failureWith("QLORA_TEST_CUDA_HANG", value, {"--ddp-timeout", "1"}),
        "a collective on the GPU has not ended after 1 s: another rank hangs, "
        "or needs a longer --ddp-timeout");
}

TEST_F(CudaRanks, ARankThatDiesEndsTheOthers) {
  for (const char *where : {"run:1", "run:20", "run:40", "cuGraphLaunch:3",
                            "ncclAllReduce:1", "ncclCommInitRankConfig:1"})
    for (const char *rank : {"@0", "@1"})
      EXPECT_HAS(failureWith("QLORA_TEST_CUDA_FAIL",
                             std::string(where) + ":kill" + rank, {}, 137),
                 fmt::format("rank {}: was killed by signal 9", rank + 1));
}

TEST_F(CudaRanks, AGpuThatFailsEndsTheOthers) {
  for (const char *graphs : {"true", "false"})
    for (const char *number : {"10", "30", "40"})
      EXPECT_HAS(failureWith("QLORA_TEST_CUDA_FAIL",
                             fmt::format("run:{}:700@1", number),
                             {"--cuda-graphs", graphs}),
                 "CUDA_ERROR_ILLEGAL_ADDRESS");
}

TEST_F(CudaRanks, SayWhatIsWrongWithTheMachine) {
  set("QLORA_TEST_CUDA_NCCL", "2804");
  EXPECT_HAS(failure(), "libnccl.so.2 is NCCL 2.8.4, but 2.14 or later is "
                        "needed; update it, or use --gpus 1");
  set("QLORA_TEST_CUDA_NCCL", "21304");
  EXPECT_HAS(failure(), "libnccl.so.2 is NCCL 2.13.4, but 2.14");
  unsetenv("QLORA_TEST_CUDA_NCCL");
  set("QLORA_TEST_CUDA_DEVICES", "sm_90:64");
  EXPECT_HAS(failure(), "rank 1: no GPU 1 for this rank: it sees 1, "
                        "numbered from 0; show all GPUs to each rank");
  set("QLORA_TEST_CUDA_DEVICES", "sm_90:64,sm_90:64");
  set("LD_LIBRARY_PATH",
      withLibrary(folder / "none", "libnccl.so.2", "/dev/null") + ":" +
          QLORA_CUDA_PLATFORM);
  EXPECT_HAS(failure(), "more than one GPU needs NCCL, but libnccl.so.2 "
                        "cannot be opened (");
  EXPECT_HAS(failure(), "install libnccl2 2.14 or later");
  train("out", {"--max-steps", "2"}); // one GPU needs no NCCL
}

TEST_F(CudaRanks, OnOneGpuAreRefused) {
  const auto outputs = runBoth({}, {}, "0");
  for (const ProcessOutput &output : outputs) {
    EXPECT_EQ(output.exitCode, 1);
    EXPECT_HAS(output.errors, "Duplicate GPU detected");
    EXPECT_HAS(output.errors, "each rank needs its own GPU");
  }
}

/// NCCL 2.28 and 2.30 need different environment variables to share a GPU.
TEST_F(CudaRanks, ShareAGpuWhereTheyMay) {
  std::vector<std::string> flags = {
      "--max-steps", "5", "--gpus", "4", "--gradient-accumulation-steps", "2"};
  const auto expected = trainOnCpu("cpu", flags);
  flags.insert(flags.end(), {"--overwrite-output-dir", "--ranks-per-gpu", ""});
  for (const auto &[version, perGpu, gpus] :
       {std::tuple("22809", "2", "sm_90:64,sm_90:64"),
        {"22809", "4", "sm_90:64"},
        {"23007", "4", "sm_90:64"}})
    for (const char *program : {QLORA_UNIGRAM_CUDA_MODULE,
                                QLORA_UNIGRAM_CUDA_SHARDS_MODULE}) {
      set("QLORA_TEST_CUDA_DEVICES", gpus);
      set("QLORA_TEST_CUDA_NCCL", version);
      flags.back() = perGpu;
      module = program;
      const auto lines = train("cuda", flags);
      ASSERT_EQ(lines.size(), expected.size());
      for (size_t i = 0; i < 5; ++i)
        EXPECT_NEAR(lines[i]["loss"].get<double>(),
                    expected[i]["loss"].get<double>(), 1e-6);
    }
}

TEST_F(CudaRanks, SayInTheHeaderThatTheyShareAGpu) {
  set("QLORA_TEST_CUDA_DEVICES", "sm_90:64");
  const auto header = [&](const char *version) {
    set("QLORA_TEST_CUDA_NCCL", version);
    return run({"--train-file", at("tokens.safetensors"), "--output-dir",
                at("out"), "--overwrite-output-dir", "--gpus", "2",
                "--max-steps", "2", "--ranks-per-gpu", "2"})
        .out;
  };
  EXPECT_HAS(header("22809"),
             "\nsharing  2 ranks on each GPU; NCCL 2.28.9 with "
             "NCCL_HOSTID=qlora-rank-0 NCCL_SOCKET_IFNAME=lo "
             "NCCL_IB_DISABLE=1\n");
  EXPECT_HAS(header("23007"),
             "\nsharing  2 ranks on each GPU; NCCL 2.30.7 with "
             "NCCL_MULTI_RANK_GPU_ENABLE=1\n");
}

TEST_F(CudaRanks, AreRefusedWhereTheyCannotShareAGpu) {
  set("QLORA_TEST_CUDA_DEVICES", "sm_90:64");
  const auto said = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--max-steps", "4"});
    return refusal(std::move(flags));
  };
  EXPECT_HAS(said({"--gpus", "3", "--ranks-per-gpu", "2"}),
             "--ranks-per-gpu 2 does not divide the 3 ranks of this machine. "
             "Fix: --gpus 4");
  EXPECT_HAS(said({"--ranks-per-gpu", "2"}),
             "--ranks-per-gpu 2 does not divide the 1 rank of this machine. "
             "Fix: --gpus 2");
  EXPECT_HAS(said({"--gpus", "4", "--ranks-per-gpu", "2"}),
             "no GPU 1 for this rank: it sees 1, numbered");
  module = QLORA_UNIGRAM_CUDA_SHARDS_MODULE; // pairs share a base
  EXPECT_HAS(said({"--gpus", "6", "--ranks-per-gpu", "3"}),
             "--ranks-per-gpu 3 does not divide the mesh of 2 ranks that '");
  module = QLORA_UNIGRAM_MODULE;
  EXPECT_HAS(said({"--gpus", "2", "--ranks-per-gpu", "2"}),
             "was compiled for the cpu. Fix: leave --ranks-per-gpu out");
}

} // namespace
} // namespace qlora
