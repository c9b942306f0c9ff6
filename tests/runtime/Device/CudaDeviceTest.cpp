// SPDX-License-Identifier: MIT

// The demo module on the CUDA device with fake driver functions: results equal
// the CPU's. Also tests graphs, errors of every call, and memory.

#include "tests/runtime/Device/CudaDeviceFixture.h"

#include "runtime/Device/Cuda/CudaImages.h"
#include "runtime/Weights/ArenaSink.h"
#include "tests/runtime/Faults.h"

#include <set>

namespace qlora {
namespace {

class CudaDeviceTest : public CudaDeviceFixture {};

TEST_F(CudaDeviceTest, TrainsAsTheCpuDoes) {
  for (const bool graphs : {true, false}) {
    DeviceOptions options;
    options.graphs = graphs;
    Status status = start(options);
    ASSERT_TRUE(status.isOk()) << status.message();
    // Every replay reads the current step block.
    for (const float rate : {0.5f, 1.0f, 2.0f}) {
      ASSERT_TRUE(run(kDemoAccumulate).isOk());
      ASSERT_TRUE(run(kDemoUpdate, rate).isOk());
    }
    ASSERT_TRUE(run(kDemoEvaluate).isOk());
    for (size_t i = 0; i < 16; ++i) {
      const auto x = static_cast<float>(i);
      EXPECT_EQ((*read(kDemoTrainable))[i], 1 - 3.5f * (x + 1));
      EXPECT_EQ((*read(kDemoGradient))[i], 0);
      EXPECT_EQ((*read(kDemoResult))[i], 2 * x + 1 - 3.5f * (x + 1));
    }
    EXPECT_EQ(device->counters().commands[QLORA_COMMAND_LAUNCH],
              3 * 2 + 3 * 1 + 1u);
  }
}

TEST_F(CudaDeviceTest, CapturesAnEntryOnceAndNeverWaits) {
  ASSERT_TRUE(start({}).isOk());
  auto &calls = fake::machine.calls;
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(run(kDemoAccumulate).isOk());
    ASSERT_TRUE(run(kDemoUpdate).isOk());
    EXPECT_EQ(calls["graphLaunch"], 2 * step); // first runs use none
  }
  EXPECT_EQ(calls["streamBeginCapture"], 2);
  EXPECT_EQ(calls["graphInstantiate"], 2);
  EXPECT_EQ(calls["launchKernel"], 2 * 3);
  EXPECT_EQ(calls["streamSynchronize"], 0);
  // In addition to the entry's two events, the graph has two events, at which
  // the communication queue branches off and rejoins.
  EXPECT_EQ(calls["eventRecord"], 2 * 4);
  EXPECT_EQ(calls["streamWaitEvent"], 2 * 4);
}

TEST_F(CudaDeviceTest, RunsEachShareOfLabelsBeforeItCapturesIt) {
  tables.entries[kDemoAccumulate].batch = 2;
  tables.entries[kDemoAccumulate].length = 8;
  ASSERT_TRUE(start({}).isOk());
  auto &calls = fake::machine.calls;
  qlora_step_block step{};
  const auto captures = [&](uint64_t labels) {
    const int before = calls["streamBeginCapture"];
    step.labelled_rows = labels;
    EXPECT_TRUE(
        runEntry(*device, *module, module->entries()[kDemoAccumulate], step)
            .isOk());
    return calls["streamBeginCapture"] - before;
  };
  EXPECT_EQ(captures(16), 0);
  EXPECT_EQ(captures(3), 0); // with 3 labels, the LM head runs other GEMMs
  EXPECT_EQ(captures(4), 1);
  EXPECT_EQ(captures(13), 1);
  EXPECT_EQ(captures(1) + captures(14), 0);
  EXPECT_EQ(calls["graphLaunch"], 4);
}

TEST_F(CudaDeviceTest, InputsWithSegmentsHaveAGraphOfTheirOwn) {
  ASSERT_TRUE(start({}).isOk());
  auto &calls = fake::machine.calls;
  const auto captures = [&](bool hasOneSegment) {
    const int before = calls["streamBeginCapture"];
    EXPECT_TRUE(runEntry(*device, *module, module->entries()[kDemoAccumulate],
                         {}, true, hasOneSegment)
                    .isOk());
    return calls["streamBeginCapture"] - before;
  };
  EXPECT_EQ(captures(true), 0);
  EXPECT_EQ(captures(false), 0);
  EXPECT_EQ(captures(true), 1);
  EXPECT_EQ(captures(false), 1);
  EXPECT_EQ(captures(true) + captures(false), 0);
}

TEST_F(CudaDeviceTest, ReadsResultsOfStepsThatAreOver) {
  ASSERT_TRUE(start({}).isOk());
  EXPECT_GT(device->traits.lead, 0);
  // Two rounds of the ring of started reads. Finishes a read after the next
  // read has started.
  constexpr int kReads = 2 * Device::kMaxStartedReads;
  float value = 0;
  auto finish = [&] {
    return device->finishRead({reinterpret_cast<uint8_t *>(&value), 4}).isOk();
  };
  for (int i = 0; i < kReads; ++i) {
    ASSERT_TRUE(write(kDemoTrainable, std::vector<float>(16, i)).isOk());
    ASSERT_TRUE(device->startRead(kDemoTrainable, 0, 4).isOk());
    ASSERT_TRUE(i == 0 || finish());
    EXPECT_EQ(value, std::max(0, i - 1));
  }
  EXPECT_EQ(fake::machine.calls["streamSynchronize"], 0);
  EXPECT_EQ(fake::machine.calls["eventSynchronize"], kReads - 1);
}

TEST_F(CudaDeviceTest, RunsWithoutGraphsWhenAskedToOrObserved) {
  DeviceOptions options;
  options.graphs = false;
  ASSERT_TRUE(start(options).isOk());
  ASSERT_TRUE(run(kDemoUpdate).isOk() && run(kDemoUpdate).isOk());
  EXPECT_EQ(fake::machine.calls["launchKernel"], 2);
  KernelObserver observer;
  options.graphs = true;
  options.observer = &observer;
  ASSERT_TRUE(start(options).isOk());
  observer.onLogits = [](const LogitsBlock &) {};
  ASSERT_TRUE(run(kDemoEvaluate).isOk());
  EXPECT_EQ(fake::machine.calls["streamBeginCapture"], 0);
  observer.onLogits = nullptr;
  ASSERT_TRUE(run(kDemoEvaluate).isOk());
  EXPECT_EQ(fake::machine.calls["streamBeginCapture"], 1);
}

TEST_F(CudaDeviceTest, EveryFailingCallIsAnError) {
  std::set<std::string> failed;
  tables.arenas[kDemoFrozen].kind = QLORA_ARENA_HOST;
  for (const bool graphs : {true, false}) {
    DeviceOptions options;
    options.graphs = graphs;
    FaultSweep sweep({.calls = kCuda, .error = 700});
    while (sweep.next()) {
      fake::machine.isCapturing = false;
      Status status;
      bool isLost = false;
      sweep.run([&] {
        status = runAll(options);
        isLost = status.isOk() && sweep.hasFailed();
        device.reset();
      });
      const std::string where = sweep.call() + ": " + status.message();
      EXPECT_EQ(fake::machine.live, 0) << where;
      EXPECT_TRUE(fake::machine.allocations.empty()) << where;
      EXPECT_FALSE(isLost && !onlyFrees(sweep.name())) << where;
      EXPECT_TRUE(!fake::machine.isCapturing ||
                  sweep.name() == "cuStreamEndCapture");
      failed.insert(sweep.name());
      if (status.isOk())
        continue;
      EXPECT_HAS(status.message(), nameInMessages(sweep.name()) + ": ");
      EXPECT_HAS(status.message(), "CUDA_ERROR_FAKE (700): as the test");
    }
    EXPECT_GE(sweep.failures(), 100);
  }
  std::string others;
#define QLORA_DRIVER(Member, Symbol, Parameters)                               \
  others += failed.contains(#Symbol) ? "" : #Symbol " ";
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
  // These are called only for messages, NVML and group waits, or not at all.
  EXPECT_EQ(others, "cuGetErrorName cuGetErrorString cuDeviceGetPCIBusId "
                    "cuDeviceTotalMem_v2 cuFuncSetAttribute cuEventQuery ");
}

TEST_F(CudaDeviceTest, RunsNothingAfterAnError) {
  ASSERT_TRUE(start({}).isOk());
  fake::machine.failing = "launchKernel";
  const Status status = run(kDemoUpdate);
  EXPECT_HAS(status.message(), "update, command 0 (launch 'demo/descend'): "
                               "cuLaunchKernel: CUDA_ERROR_FAKE (700)");
  fake::machine.failing.clear();
  EXPECT_EQ(run(kDemoEvaluate).message(), "cuLaunchKernel: CUDA_ERROR_FAKE "
                                          "(700): as the test wants it");
}

TEST_F(CudaDeviceTest, SaysThatThePlanDoesNotFit) {
  tables.arenas[kDemoActivation].bytes = uint64_t{3} << 30;
  const Status status = create({});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_HAS(status.message(), "GPU 0 (Fake GPU 0) has 924.0 MiB free of 1.0 "
                               "GiB, but the plan needs 3.0 GiB");
  EXPECT_HAS(status.message(), "compile the model with a smaller "
                               "--memory-limit");
}

TEST_F(CudaDeviceTest, NamesTheArenaThatIsRefused) {
  fake::machine.failing = "memAlloc";
  fake::machine.error = 2;
  const Status status = create({});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_HAS(status.message(), " arena: cannot get ");
  EXPECT_HAS(status.message(), "of 1024.0 MiB free; compile the model with a "
                               "smaller --memory-limit");
}

TEST_F(CudaDeviceTest, ChoosesTheImageThatFitsBest) {
  const uint8_t code = 0;
  auto image = [&](qlora_image_kind kind, uint32_t arch) {
    return qlora_image{&code, 1, 0, kind, arch, 0};
  };
  const qlora_image images[] = {
      image(QLORA_IMAGE_CUBIN, 80), image(QLORA_IMAGE_CUBIN, 89),
      image(QLORA_IMAGE_CUBIN, 90), image(QLORA_IMAGE_PTX, 75),
      image(QLORA_IMAGE_PTX, 80)};
  EXPECT_EQ(bestImage(images, 0, 80), &images[0]);
  EXPECT_EQ(bestImage(images, 0, 86), &images[0]);
  EXPECT_EQ(bestImage(images, 0, 89), &images[1]);
  EXPECT_EQ(bestImage(images, 0, 90), &images[2]);
  EXPECT_EQ(bestImage(images, 0, 120), &images[4]);
  EXPECT_EQ(bestImage(images, 0, 75), &images[3]);
  EXPECT_EQ(bestImage(images, 0, 70), nullptr);
  EXPECT_EQ(bestImage(images, 1, 90), nullptr);
}

TEST_F(CudaDeviceTest, SaysWhatAnUnknownGpuNeeds) {
  fake::machine.arch = 100;
  ASSERT_TRUE(create({}).isOk()); // with an image from PTX
  ASSERT_EQ(device->remarks().size(), 1u);
  EXPECT_HAS(device->remarks()[0], "Fake GPU 0 is sm_100, for which the");
  fake::machine.arch = 75;
  const Status status = create({});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_HAS(status.message(),
             "Fake GPU 0 is sm_75, but the program has code for PTX of "
             "compute_80, sm_80, sm_90 only; compile it with sm_75 in "
             "--cuda-arch");
}

TEST_F(CudaDeviceTest, SaysWhichDriverTheModuleNeeds) {
  tables.header.cuda_version = 13020;
  const auto refused = [&](int driver, int arch) -> std::string {
    fake::machine.version = driver;
    fake::machine.arch = arch;
    const Status status = create({});
    EXPECT_TRUE(status.isOk() || status.code() == StatusCode::kUnavailable);
    return status.isOk() ? "" : status.message();
  };
  // A cubin for CUDA 13 runs on all drivers of that major version and on later
  // drivers.
  EXPECT_EQ(refused(13000, 90), "");
  EXPECT_EQ(refused(14000, 90), "");
  EXPECT_EQ(refused(12080, 90),
            "'demo': its code for sm_90 was compiled by nvcc 13.2 and needs a "
            "driver for CUDA 13.0 (580.65 or newer), but the installed driver "
            "is for CUDA 12.8; update the driver, or compile the model with an "
            "nvcc of CUDA 12.8 or older");
  // The driver rejects PTX that is too new for the driver.
  EXPECT_EQ(refused(13000, 103), "");
  fake::machine.failing = "moduleLoadData";
  fake::machine.error = kCudaUnsupportedPtx;
  EXPECT_EQ(
      refused(13000, 103),
      "'demo': its PTX of compute_80 was compiled by nvcc 13.2 and needs a "
      "driver for CUDA 13.2, but the installed driver is for CUDA 13.0; update "
      "the driver, or compile the model with sm_103 in --cuda-arch");
  fake::machine.failing.clear();
  EXPECT_EQ(
      refused(12080, 103),
      "'demo': its PTX of compute_80 was compiled by nvcc 13.2 and needs a "
      "driver for CUDA 13.2, but the installed driver is for CUDA 12.8; update "
      "the driver, or compile the model with an nvcc of CUDA 12.8 or older");
  // The minimum driver of this future compiler is unknown.
  tables.header.cuda_version = 14010;
  EXPECT_HAS(refused(13020, 90), "needs a driver for CUDA 14.0, but the");
}

TEST_F(CudaDeviceTest, EndsPtxWithAZero) {
  static const uint8_t text[] = {'p', 't', 'x', '!'};
  for (qlora_image &image : tables.images)
    image = {text, 3, image.unit, image.kind, image.arch, 0};
  fake::machine.arch = 100;
  ASSERT_TRUE(create({}).isOk());
  EXPECT_EQ(fake::machine.loadedImages,
            std::vector<std::string>(2, std::string("ptx")));
}

TEST_F(CudaDeviceTest, SaysWhichGpuIsMissing) {
  DeviceOptions options;
  options.ordinal = 1;
  EXPECT_HAS(create(options).message(), "no GPU 1 for this rank: it sees 1, "
                                        "numbered from 0");
  fake::machine.gpus = 2;
  EXPECT_TRUE(create(options).isOk());
  fake::machine.gpus = 0;
  EXPECT_HAS(create({}).message(), "NVIDIA's driver sees no GPU");
  fake::machine.failing = "init";
  fake::machine.error = 100;
  const Status status = create({});
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_HAS(status.message(), "NVIDIA's driver sees no GPU");
}

TEST_F(CudaDeviceTest, RefusesWhatItCannotDo) {
  fake::machine.kernels.erase("gather");
  EXPECT_HAS(create({}).message(), "kernel 'gather': the program's device code "
                                   "has no function 'gather'");
  DemoTables cpu;
  tables.images.clear();
  EXPECT_HAS(create({}).message(), "it has no device code, as it was compiled "
                                   "with --cuda-arch none");
  std::swap(tables.kernels, cpu.kernels);
  tables.header.target = QLORA_TARGET_CPU;
  EXPECT_HAS(create({}).message(), "was compiled for the cpu, not for cuda");
}

TEST_F(CudaDeviceTest, MovesMoreThanItsBufferHolds) {
  constexpr uint64_t kBytes = (uint64_t{80} << 20) + 5;
  tables.arenas[kDemoActivation].bytes = kBytes;
  ASSERT_TRUE(create({}).isOk());
  std::vector<uint8_t> zero(kBytes, 1);
  ASSERT_TRUE(device->read(kDemoActivation, 0, zero).isOk());
  EXPECT_EQ(zero, std::vector<uint8_t>(kBytes, 0));
  std::vector<uint8_t> bytes(kBytes);
  for (uint64_t i = 0; i < kBytes; ++i)
    bytes[i] = static_cast<uint8_t>(i * 7 + (i >> 20));
  ASSERT_TRUE(device->write(kDemoActivation, 0, bytes).isOk());
  ASSERT_TRUE(device->read(kDemoActivation, 0, zero).isOk());
  EXPECT_EQ(zero, bytes);
  DeviceArena sink(*device, kDemoActivation, kBytes, {});
  const auto part = sink.map(kBytes - 3, 3);
  std::fill(part.begin(), part.end(), uint8_t{42});
  ASSERT_TRUE(sink.commit().isOk());
  std::fill_n(bytes.end() - 3, 3, uint8_t{42});
  ASSERT_TRUE(device->read(kDemoActivation, 0, zero).isOk());
  EXPECT_EQ(zero, bytes);
}

TEST_F(CudaDeviceTest, MeasuresWhatIsBesideTheArenas) {
  ASSERT_TRUE(create({}).isOk());
  uint64_t arenas = 0;
  for (const ArenaUse &use : device->memory()) {
    EXPECT_EQ(use.allocatedBytes, use.plannedBytes);
    EXPECT_FALSE(use.shared);
    arenas += use.allocatedBytes;
  }
  const std::vector<ReserveUse> reserve = device->gauges().reserve();
  ASSERT_EQ(reserve.size(), 2u);
  EXPECT_EQ(reserve[0].bytes, 100u << 20);
  EXPECT_EQ(reserve[1].bytes, fake::usedBytes() - arenas);
}

TEST_F(CudaDeviceTest, AlignsArenas) {
  tables.arenas[kDemoActivation].alignment = 4096;
  ASSERT_TRUE(start({}).isOk());
  fake::machine.kernels["scale_add"] = [](const qlora_cuda_args &args, unsigned,
                                          unsigned) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(args.buffers[2]) % 4096, 0u);
  };
  EXPECT_TRUE(run(kDemoEvaluate).isOk());
}

} // namespace
} // namespace qlora
