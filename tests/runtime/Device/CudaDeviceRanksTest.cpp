// SPDX-License-Identifier: MIT

// The CUDA device on one of two ranks, with fake function tables.

#include "tests/runtime/Device/CudaDeviceFixture.h"

namespace qlora {
namespace {

class CudaDeviceRanksTest : public CudaDeviceFixture {};

TEST_F(CudaDeviceRanksTest, AddsUpOverRanksInItsGraphs) {
  fake::TwoRanks host;
  DeviceOptions options;
  options.collectives[QLORA_GROUP_DP] = &host;
  for (const bool graphs : {true, false}) {
    options.graphs = graphs;
    const Status status = start(options);
    ASSERT_TRUE(status.isOk()) << status.message();
    fake::group.calls.clear();
    fake::machine.calls.clear();
    for (int step = 0; step < 4; ++step) {
      ASSERT_TRUE(run(kDemoAccumulate).isOk());
      ASSERT_TRUE(run(kDemoUpdate, 1).isOk());
    }
    // The fake all-reduce doubles gradients, as a second rank with equal
    // gradients.
    for (size_t i = 0; i < 16; ++i)
      EXPECT_EQ((*read(kDemoTrainable))[i],
                1 - 4 * 2 * (static_cast<float>(i) + 1));
    // The all-reduce is called once directly and once during the capture.
    EXPECT_EQ(fake::group.calls["allReduce"], graphs ? 2 : 4);
    EXPECT_EQ(fake::machine.calls["streamSynchronize"], 0);
  }
  device.reset();
  EXPECT_EQ(fake::group.calls["commDestroy"], 1);
}

TEST_F(CudaDeviceRanksTest, HaveAGraphOfWhatAllOfThemRun) {
  fake::TwoRanks host;
  DeviceOptions options;
  options.collectives[QLORA_GROUP_DP] = &host;
  const Status status = start(options);
  ASSERT_TRUE(status.isOk()) << status.message();
  auto captures = [&](DemoEntry entry, bool onAllRanks) {
    const int before = fake::machine.calls["streamBeginCapture"];
    EXPECT_TRUE(runEntry(*device, *module, module->entries()[entry], {},
                         onAllRanks)
                    .isOk());
    return fake::machine.calls["streamBeginCapture"] - before;
  };
  // The first run that all ranks make is direct, and the second is captured.
  // Runs on one rank count as neither.
  EXPECT_EQ(captures(kDemoAccumulate, false), 0);
  EXPECT_EQ(captures(kDemoAccumulate, true), 0);
  EXPECT_EQ(captures(kDemoAccumulate, false), 0);
  EXPECT_EQ(captures(kDemoAccumulate, true), 1);
  fake::machine.calls.clear();
  EXPECT_EQ(captures(kDemoAccumulate, false), 0);
  EXPECT_EQ(fake::machine.calls["graphLaunch"], 0);
  // Entries without all-reduce are captured by each rank separately.
  EXPECT_EQ(captures(kDemoUpdate, false), 0);
  EXPECT_EQ(captures(kDemoUpdate, false), 1);
}

TEST_F(CudaDeviceRanksTest, NoWaitIsLongerThanTheTimeout) {
  fake::TwoRanks host;
  host.limit = std::chrono::milliseconds(50);
  DeviceOptions options;
  options.collectives[QLORA_GROUP_DP] = &host;
  ASSERT_TRUE(start(options).isOk());
  fake::machine.unfinished = 1 << 30;
  const Status status = read(kDemoResult).status();
  EXPECT_HAS(status.message(), "a collective on the GPU has not ended after "
                               "0.05 s");
  EXPECT_FALSE(device->settle());
  EXPECT_TRUE(fake::group.isAborted);
  fake::machine.unfinished = 0;
  EXPECT_TRUE(device->settle());
}

} // namespace
} // namespace qlora
