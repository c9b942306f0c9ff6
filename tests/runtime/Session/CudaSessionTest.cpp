// SPDX-License-Identifier: MIT

// qlora-run with a CUDA program on the software platform (tests/cuda). Results
// equal the CPU's. Also tests driver calls of a step, and messages if there is
// no suitable GPU.

#include "tests/runtime/Session/CudaSessionFixture.h"

namespace qlora {
namespace {

TEST_F(CudaSession, TrainsAsOnTheCpu) {
  const std::vector<std::string> flags = {"--max-steps",
                                          "20",
                                          "--validation-file",
                                          at("rows.safetensors"),
                                          "--eval-steps",
                                          "10",
                                          "--gradient-accumulation-steps",
                                          "2"};
  const auto expected = trainOnCpu("cpu", flags);
  for (const char *graphs : {"true", "false"}) {
    auto options = flags;
    options.insert(options.end(), {"--cuda-graphs", graphs});
    const auto lines = train(graphs, options);
    ASSERT_EQ(lines.size(), expected.size());
    for (size_t i = 0; i < lines.size(); ++i)
      for (const char *key : {"loss", "grad_norm", "eval_loss",
                              "eval_token_accuracy", "train_loss"}) {
        if (!expected[i].contains(key))
          continue;
        EXPECT_NEAR(lines[i][key].get<double>(), expected[i][key].get<double>(),
                    1e-6)
            << key << " of line " << i;
      }
  }
  EXPECT_EQ(adapter("true"), adapter("false"));
}

TEST_F(CudaSession, LaunchesOneGraphForEachMicroBatch) {
  auto calls = [&](const char *steps) {
    set("QLORA_TEST_CUDA_REPORT", at(steps));
    train("out", {"--max-steps", steps, "--gradient-accumulation-steps", "3",
                  "--logging-steps", "100", "--overwrite-output-dir"});
    return nlohmann::json::parse(contents(at(steps)));
  };
  const auto few = calls("10");
  const auto many = calls("30");
  auto more = [&](const char *name) {
    return many.value(name, 0) - few.value(name, 0);
  };
  EXPECT_EQ(more("cuGraphLaunch"), 20 * (3 + 1));
  EXPECT_EQ(more("cuGraphInstantiateWithFlags"), 0);
  EXPECT_EQ(more("cuLaunchKernel"), 0);
  EXPECT_EQ(more("cuMemAlloc_v2"), 0);
  // Loss, labels and norm of the previous step are read while the next step
  // runs.
  EXPECT_EQ(more("host waits"), 20 * 3);
  EXPECT_EQ(more("synchronisations"), 0);
  EXPECT_GT(few["cuGraphLaunch"].get<int>(), 0);
}

TEST_F(CudaSession, TheFirstStepCanBeLogged) {
  std::vector<int> steps;
  for (const auto &line : train("out", {"--max-steps", "5", "--logging-steps",
                                        "3", "--logging-first-step", "true"}))
    if (line.contains("loss"))
      steps.push_back(line["step"]);
  EXPECT_EQ(steps, (std::vector{1, 3, 5}));
}

TEST_F(CudaSession, ReportsTheMemoryOfTheGpu) {
  const ProcessOutput output =
      run({"--train-file", at("tokens.safetensors"), "--output-dir", at("out"),
           "--max-steps", "2", "--verbose"});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_HAS(output.out, "CUDA context and others");
  EXPECT_HAS(output.out, "code, graphs, libraries");
  EXPECT_HAS(output.out, "outside the plan");
}

TEST_F(CudaSession, NamesTheGpusAndThoseThatAreIdle) {
  const std::vector<std::string> flags = {
      "--train-file", at("tokens.safetensors"), "--output-dir", at("out"),
      "--max-steps", "1", "--overwrite-output-dir"};
  const auto said = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    const ProcessOutput output = run(std::move(more));
    EXPECT_EQ(output.exitCode, 0) << output.errors;
    return output.out + output.errors;
  };
  EXPECT_HAS(said({}), "\ndevice   1 x Software sm_90\n");
  EXPECT_EQ(said({}).find("idle"), std::string::npos);
  set("QLORA_TEST_CUDA_DEVICES", "sm_90:64,sm_90:64,sm_90:64");
  const std::string two = said({"--gpus", "2"});
  EXPECT_HAS(two, "\ndevice   2 x Software sm_90\n");
  module = QLORA_UNIGRAM_MODULE;
  const std::string cpu = said({"--threads", "1", "--gpus", "2"});
  EXPECT_HAS(cpu, "\ndevice   CPU, 2 ranks x 1 thread\n");
  EXPECT_HAS(cpu, "warning: idle GPU: 3 x Software sm_90: '");
  EXPECT_HAS(cpu, "was compiled for the CPU. Fix: qlora train ");
  set("QLORA_TEST_CUDA_VERSION", "11080");
  EXPECT_HAS(said({}), "warning: idle GPU: NVIDIA's driver is for CUDA 11.8");
  set("QLORA_TEST_CUDA_DEVICES", "none");
  set("QLORA_TEST_CUDA_VERSION", "13000");
  EXPECT_EQ(said({}).find("idle"), std::string::npos);
}

TEST_F(CudaSession, SaysWhatIsWrongWithTheMachine) {
  EXPECT_HAS(refusal({"--device", "cpu"}),
             "was compiled for cuda; compile it with --target cpu");
  EXPECT_HAS(refusal({"--disable-kernels", "abacus"}),
             "--disable-kernels: 'abacus' is not a kernel");
  set("QLORA_TEST_CUDA_DEVICES", "none");
  EXPECT_HAS(refusal({}), "NVIDIA's driver sees no GPU");
  set("QLORA_TEST_CUDA_DEVICES", "sm_75:64");
  EXPECT_HAS(refusal({}), "is sm_75, but the program has code for sm_90 only; "
                          "compile it with sm_75 in --cuda-arch");
  set("QLORA_TEST_CUDA_DEVICES", "sm_90:64");
  set("QLORA_TEST_CUDA_VERSION", "12080");
  EXPECT_HAS(refusal({}),
             "its code for sm_90 was compiled by nvcc 13.0 and needs a driver "
             "for CUDA 13.0 (580.65 or newer), but the installed driver is for "
             "CUDA 12.8; update the driver, or compile the model with an nvcc "
             "of CUDA 12.8 or older");
  set("QLORA_TEST_CUDA_VERSION", "11080");
  EXPECT_HAS(refusal({}), "NVIDIA's driver is for CUDA 11.8, but 12.0 is");
  set("LD_LIBRARY_PATH",
      withLibrary(folder / "bare", "libcuda.so.1", QLORA_BARE_DRIVER));
  EXPECT_HAS(refusal({}), "has no cuGetErrorName; update it");
  set("LD_LIBRARY_PATH",
      withLibrary(folder / "none", "libcuda.so.1", "/dev/null"));
  EXPECT_HAS(refusal({}), "no CUDA driver here");
}

TEST_F(CudaSession, NamesWhoHoldsTheMemory) {
  const std::string room = "GPU 0 (Software sm_90) has 0.0 MiB free of 64.0 "
                           "MiB, but the plan needs 0.0 MiB";
  const std::string advice = ". Fix: stop other processes on this GPU, choose "
                             "another GPU (CUDA_VISIBLE_DEVICES), or compile "
                             "the model with a smaller --memory-limit";
  set("QLORA_TEST_CUDA_DEVICES", "sm_90:64,sm_90:64");
  set("QLORA_TEST_CUDA_PROCESSES", "0:4711:python:64,1:12:other:64");
  EXPECT_HAS(refusal({}),
             room + ": process 4711 (python) holds 64.0 MiB" + advice);
  set("QLORA_TEST_CUDA_PROCESSES", "0:7::0,0:12::30,0:4711:python:34");
  EXPECT_HAS(refusal({}),
             room + ": process 4711 (python) holds 34.0 MiB, process 12 holds "
                    "30.0 MiB, process 7 holds an unknown amount" +
                 advice);
  // If a call of NVML fails, only its part of the message is missing.
  for (const char *call :
       {"nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3", "cuDeviceGetPCIBusId"}) {
    set("QLORA_TEST_CUDA_PROCESSES", "0:7::64");
    set("QLORA_TEST_CUDA_FAIL", std::string(call) + ":1:999");
    EXPECT_HAS(refusal({}), room);
  }
  set("QLORA_TEST_CUDA_FAIL", "");
  const auto folder = this->folder / "no-nvml";
  withLibrary(folder, "libnvidia-ml.so.1", "/dev/null");
  set("LD_LIBRARY_PATH", folder.string() + ":" QLORA_CUDA_PLATFORM);
  EXPECT_HAS(refusal({}), room + advice);
}

TEST_F(CudaSession, AFailingCallEndsTheRunWithItsName) {
  set("QLORA_TEST_CUDA_FAIL", "cuMemAlloc_v2:2:2");
  EXPECT_HAS(refusal({}), "trainable arena: cannot get 128 bytes");
  set("QLORA_TEST_CUDA_FAIL", "cuGraphLaunch:5:719");
  EXPECT_HAS(refusal({"--max-steps", "4"}), "cuGraphLaunch: CUDA_ERROR_");
  set("QLORA_TEST_CUDA_FAIL", "run:20:700");
  EXPECT_HAS(refusal({"--max-steps", "4"}), "CUDA_ERROR_ILLEGAL_ADDRESS");
}

TEST_F(CudaSession, AModuleForTheCpuNeedsNoDriver) {
  set("LD_LIBRARY_PATH",
      withLibrary(folder / "none", "libcuda.so.1", "/dev/null"));
  trainOnCpu("cpu", {"--max-steps", "2"});
  module = QLORA_UNIGRAM_MODULE;
  EXPECT_HAS(refusal({"--device", "cuda"}),
             "was compiled for cpu; compile it with --target cuda");
}

} // namespace
} // namespace qlora
