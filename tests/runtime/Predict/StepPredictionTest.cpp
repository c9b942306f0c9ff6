// SPDX-License-Identifier: MIT

// Predicts the demo module's step on a device with round rates.

#include "runtime/Predict/CollectiveCost.h"
#include "runtime/Predict/NullRun.h"
#include "runtime/Predict/PredictionText.h"
#include "runtime/Predict/StepPrediction.h"
#include "tests/runtime/DemoTables.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

/// A GPU with 1 GB/s of memory and 1 us per launch. Links have 10 MB/s inside a
/// node of 8, 1 MB/s between nodes, and a latency of 1 us.
DeviceProfile roundGpu() {
  DeviceProfile device;
  device.cpu = "round";
  device.copyGbps = 1;
  GpuRates &gpu = device.gpu.emplace();
  gpu.memoryGb = 1;
  gpu.cudnnAttention = {{2, 2}, {2, 2}};
  gpu.cudaAttention = {{1, 1}, {1, 1}};
  gpu.thinGemmGbps = 0.6;
  gpu.issueGops = 10;
  gpu.launchMicroseconds = 1;
  gpu.gpusPerNode = 8;
  gpu.nodeLinkGbps = 0.01;
  gpu.networkGbps = 0.001;
  gpu.allReduceMicroseconds = 1;
  gpu.hostLinkGbps = 0.001;
  return device;
}

class StepPredictionTest : public testing::Test {
protected:
  StepPredictionTest() { tables.retarget(); }

  StatusOr<std::vector<StepPrediction>>
  predict(int64_t ranks, int64_t microBatches,
          const DeviceProfile &device = roundGpu()) {
    QLORA_ASSIGN_OR_RETURN(LoadedModule module, tables.load());
    return predictSteps(module, {device, ranks, microBatches});
  }
  StepPrediction only(int64_t ranks, int64_t microBatches) {
    auto steps = predict(ranks, microBatches);
    EXPECT_TRUE(steps.isOk()) << steps.status().message();
    EXPECT_EQ(steps->size(), 1u);
    return steps->front();
  }
  std::string errorOf(StatusOr<std::vector<StepPrediction>> steps) {
    EXPECT_FALSE(steps.isOk());
    return steps.status().message();
  }

  DemoTables tables;
};

// In ACCUMULATE_LAST, gather reads 64 bytes and updates (reads and writes) 64;
// scale_add reads 128 and writes 64. Both move 192 bytes. In UPDATE, descend
// moves 192 bytes too, and 72 bytes are set to zero.
constexpr double kKernel = 1e-6 + 192e-9;
constexpr double kUpdate = 2e-6 + 192e-9 + 72e-9;

// The bus transfers 64 bytes of the weight, one byte per microsecond.
constexpr double kBus = 64e-6;

TEST_F(StepPredictionTest, WhatAKernelReadsOnTheHostComesOverTheBus) {
  const double before = only(1, 1).seconds;
  tables.arenas[kDemoFrozen].kind = QLORA_ARENA_HOST;
  const StepPrediction step = only(1, 1);
  EXPECT_NEAR(step.seconds, before + kBus, 1e-15);
  EXPECT_EQ(step.exposedCommunication, 0);
}

TEST_F(StepPredictionTest, ACopyOverTheBusIsBesideKernels) {
  const double before = only(1, 1).seconds;
  tables.arenas[kDemoFrozen].kind = QLORA_ARENA_HOST;
  // A copy over the bus replaces scale_add and its 192 bytes of device memory.
  for (qlora_command &command : tables.commands)
    if (command.kind == QLORA_COMMAND_LAUNCH && command.target == 0) {
      command.kind = QLORA_COMMAND_COPY;
      command.target = 0;
      command.operand_count = 2;
      command.first_operand = static_cast<uint32_t>(tables.operands.size());
    }
  tables.operands.push_back(tables.operands[2]);
  tables.operands.push_back(tables.operands[0]);
  const StepPrediction step = only(1, 1);
  EXPECT_NEAR(step.seconds, before - kKernel + kBus, 1e-15);
  EXPECT_NEAR(step.exposedCommunication, kBus, 1e-15);
  ASSERT_EQ(step.collectives.size(), 2u); // after the all-reduce
  EXPECT_EQ(step.collectives[1].kind, "copy");
  EXPECT_EQ(step.collectives[1].bytes, 64);
}

TEST_F(StepPredictionTest, AStepOfOneRankIsItsKernels) {
  const StepPrediction step = only(1, 1);
  EXPECT_NEAR(step.seconds, 2 * kKernel + kUpdate, 1e-15);
  EXPECT_NEAR(step.launchSeconds, 4e-6, 1e-15);
  EXPECT_EQ(step.exposedCommunication, 0);
  EXPECT_EQ(step.collectives.size(), 1u);
  EXPECT_EQ(step.collectives[0].bytes, 72);
  EXPECT_EQ(step.collectives[0].group, "dp");
  EXPECT_EQ(step.collectives[0].seconds, 0);
  const auto &rows = step.parts[size_t(StepPart::kRows)];
  EXPECT_EQ(rows.work.launches, 2);
  EXPECT_DOUBLE_EQ(rows.work.bytes, 2 * 192);
  const auto &optimizer = step.parts[size_t(StepPart::kOptimizer)];
  EXPECT_EQ(optimizer.work.launches, 2);
  EXPECT_DOUBLE_EQ(optimizer.work.bytes, 192 + 72);
  EXPECT_DOUBLE_EQ(step.tokensPerSecond(),
                   double(step.batch * step.length) / step.seconds);
}

TEST_F(StepPredictionTest, MicroBatchesButTheLastSendNothing) {
  qlora_entry accumulate = tables.entries[kDemoAccumulate];
  accumulate.kind = QLORA_ENTRY_ACCUMULATE;
  accumulate.command_count = 1; // gather only
  accumulate.event_count = 0;
  tables.entries.push_back(accumulate);
  const StepPrediction one = only(2, 1), three = only(2, 3);
  EXPECT_NEAR(three.seconds, one.seconds + 2 * kKernel, 1e-15);
  EXPECT_EQ(three.collectives.size(), 1u);
  EXPECT_DOUBLE_EQ(three.exposedCommunication, one.exposedCommunication);
}

TEST_F(StepPredictionTest, WithoutItsEntryThereIsNoStep) {
  EXPECT_HAS(errorOf(predict(1, 2)), "has no entry accumulate");
}

TEST_F(StepPredictionTest, CommunicationHidesBehindOneKernel) {
  // The all-reduce (1 us, and 72 bytes at 10 MB/s) overlaps with scale_add.
  const StepPrediction two = only(2, 1);
  EXPECT_NEAR(two.collectives[0].seconds, 1e-6 + 7.2e-6, 1e-15);
  EXPECT_NEAR(two.exposedCommunication, 8.2e-6 - kKernel, 1e-15);
  EXPECT_NEAR(two.seconds, only(1, 1).seconds + two.exposedCommunication,
              1e-15);
  // 64 ranks in 8 nodes: latency of 3 + 1 us, 2 * 7/8 of the bytes inside a
  // node, and 2 * 7/8 of an eighth of the bytes between nodes.
  const StepPrediction many = only(64, 1);
  EXPECT_NEAR(many.collectives[0].seconds, 4e-6 + 12.6e-6 + 15.75e-6, 1e-15);
  EXPECT_DOUBLE_EQ(many.tokensPerSecond(),
                   64.0 * double(many.batch * many.length) / many.seconds);
}

/// Replaces the all-reduce of gradients by a send to or a receive from `peer`.
void meet(DemoTables &tables, qlora_collective kind, int peer) {
  qlora_command &command = tables.commands[5];
  command.collective = static_cast<uint8_t>(kind);
  command.group = QLORA_GROUP_PP;
  command.peer = static_cast<int16_t>(peer);
  tables.operands[7].access =
      kind == QLORA_COLLECTIVE_SEND ? QLORA_READ : QLORA_WRITE;
}

/// First, both stages have equal work. Then stage 1 has one more kernel, so it
/// has the most work and the step takes longer.
TEST_F(StepPredictionTest, StagesRunTogether) {
  const StepPrediction summed = only(2, 1);
  DemoTables second;
  second.retarget();
  meet(tables, QLORA_COLLECTIVE_SEND, 1);
  meet(second, QLORA_COLLECTIVE_RECV, -1);
  followEachOther(tables, second);
  const StepPrediction equal = only(2, 1);
  // The transfer takes as long as an all-reduce of two ranks: 1 us, and 72
  // bytes at 10 MB/s.
  EXPECT_NEAR(equal.seconds, summed.seconds, 1e-15);
  EXPECT_EQ(equal.stage, 0);
  EXPECT_EQ(equal.stages, 2);
  EXPECT_EQ(equal.dataRanks, 1);
  second.commands.insert(second.commands.begin() + 2, second.commands[2]);
  ++second.entries[kDemoAccumulate].command_count;
  ++second.entries[kDemoUpdate].first_command;
  second.table();
  const StepPrediction later = only(2, 1);
  EXPECT_EQ(later.stage, 1);
  EXPECT_GT(later.seconds, equal.seconds);
  EXPECT_NEAR(later.seconds - later.busySeconds(),
              later.exposedCommunication - later.overlapped, 1e-15);
  // With 16 ranks, stage peers are 8 ranks apart, and thus on different nodes.
  EXPECT_NEAR(only(16, 1).seconds - later.seconds, 72 / 1e6 - 72 / 1e7, 1e-12);
  EXPECT_HAS(predictionText(later, nullptr, roundGpu()),
             "  stage 1 of 2, which has the most work");
}

TEST_F(StepPredictionTest, StagesThatDoNotMeetAreRefused) {
  DemoTables second;
  second.retarget();
  meet(tables, QLORA_COLLECTIVE_SEND, 1);
  followEachOther(tables, second);
  EXPECT_EQ(errorOf(predict(2, 1)),
            "'demo', accumulate_last: deadlock: stages wait for each other");
  meet(second, QLORA_COLLECTIVE_RECV, -1);
  second.operands[7].bytes = 64;
  second.table();
  EXPECT_EQ(errorOf(predict(2, 1)), "'demo', accumulate_last: stage 0 sends 72 "
                                    "bytes, but stage 1 receives 64");
}

TEST_F(StepPredictionTest, ScalingDoublesUpToAllRanks) {
  auto module = tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  auto curve = predictScaling(*module, {roundGpu(), 11, 1});
  ASSERT_TRUE(curve.isOk()) << curve.status().message();
  std::vector<int64_t> ranks;
  for (const StepPrediction &step : curve.value()) {
    EXPECT_EQ(step.seconds, only(step.ranks, 1).seconds);
    ranks.push_back(step.ranks);
  }
  EXPECT_EQ(ranks, (std::vector<int64_t>{1, 2, 4, 8, 11}));
  EXPECT_HAS(scalingText(curve.value(), *roundGpu().gpu), "\n      11      2 ");
}

/// Pairs of ranks have the same rows, and each pair has an all-reduce.
TEST_F(StepPredictionTest, ThoseThatShareProductsOrLinesCountTheirTokensOnce) {
  for (const qlora_group group : {QLORA_GROUP_TP, QLORA_GROUP_CP}) {
    const bool isLines = group == QLORA_GROUP_CP;
    tables.commands[5].group = static_cast<uint8_t>(group);
    tables.header.mesh.tp = isLines ? 1 : 2;
    if (isLines)
      shareLines(tables);
    auto module = tables.load();
    ASSERT_TRUE(module.isOk()) << module.status().message();
    auto curve = predictScaling(*module, {roundGpu(), 8, 1});
    ASSERT_TRUE(curve.isOk()) << curve.status().message();
    ASSERT_EQ(curve->size(), 3u);
    EXPECT_HAS(scalingText(*curve, *roundGpu().gpu),
               "2 x 8 tokens on every 2 ranks");
    for (size_t i = 0; i < 3; ++i) {
      const StepPrediction &step = (*curve)[i];
      EXPECT_EQ(step.ranks, 2 << i);
      EXPECT_EQ(step.collectives[0].group, groupName(group));
      EXPECT_NEAR(step.collectives[0].seconds, 1e-6 + 7.2e-6, 1e-15);
      EXPECT_DOUBLE_EQ(step.tokensPerSecond(),
                       double((1 << i) * step.batch * step.length) /
                           step.seconds);
    }
  }
}

TEST(DeviceChoice, NetworkIsBitsOrBytesASecond) {
  const auto rate = [](int64_t gpus, const std::string &network) {
    DeviceChoice choice = {true, roundGpu()};
    const Status status = choice.describeNetwork(gpus, network);
    return status.isOk() ? fmt::format("{} of {}", choice.gpu->gpu->networkGbps,
                                       choice.gpu->gpu->gpusPerNode)
                         : status.message();
  };
  const GpuRates as = *roundGpu().gpu;
  EXPECT_EQ(rate(0, ""),
            fmt::format("{} of {}", as.networkGbps, as.gpusPerNode));
  EXPECT_EQ(rate(4, "400Gb"), "48 of 4");
  EXPECT_EQ(rate(4, "50GB/s"), "48 of 4");
  EXPECT_EQ(rate(4, "400Gbps"), "48 of 4");
  for (const char *wrong : {"400", "0Gb", "-1Gb", "nanGb", "infGb", "1e999Gb",
                            "400Gbit", "Gb", "4 Gb"})
    EXPECT_HAS(rate(4, wrong), fmt::format("--network {}: expects", wrong));
  DeviceChoice none = {true, std::nullopt};
  EXPECT_TRUE(none.describeNetwork(0, "").isOk());
  EXPECT_HAS(none.describeNetwork(4, "").message(), "add --simulate h100");
}

TEST_F(StepPredictionTest, EqualKernelsAreOneGroup) {
  const StepPrediction step = only(1, 1);
  double count = 0, seconds = 0;
  for (const KernelGroup &group : step.groups) {
    count += group.count;
    seconds += group.count * group.demand.seconds();
  }
  EXPECT_EQ(count, 4);
  EXPECT_NEAR(seconds, step.seconds, 1e-15);
  EXPECT_EQ(step.groups.back().kernel, "fill");
}

TEST_F(StepPredictionTest, TheLowFigureIsLowerAndTakesTurns) {
  const PredictionRequest request = {roundGpu(), 2, 3};
  const PredictionRequest low = lowRequest(request);
  EXPECT_EQ(request.sharing, QueueSharing::kSideBySide);
  EXPECT_EQ(low.sharing, QueueSharing::kTakeTurns);
  EXPECT_EQ(low.microBatches, 3);
  EXPECT_DOUBLE_EQ(low.device.copyGbps, 0.85);
}

/// gather and scale_add of ACCUMULATE_LAST run on two queues without any order
/// between them.
TEST_F(StepPredictionTest, QueuesShareOrTakeTurns) {
  qlora_entry &last = tables.entries[kDemoAccumulate];
  std::vector<qlora_command> launches;
  for (uint32_t i = 0; i < last.command_count; ++i)
    if (tables.commands[last.first_command + i].kind == QLORA_COMMAND_LAUNCH)
      launches.push_back(tables.commands[last.first_command + i]);
  ASSERT_EQ(launches.size(), 2u);
  launches[0].queue = QLORA_QUEUE_COPY;
  last.first_command = uint32_t(tables.commands.size());
  last.command_count = 2;
  last.event_count = 0;
  tables.commands.insert(tables.commands.end(), launches.begin(),
                         launches.end());
  auto module = tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  PredictionRequest request = {roundGpu(), 1, 1};
  // Memory bounds both kernels, but each overlaps with the other's launch
  // latency.
  const double side = predictSteps(*module, request)->front().seconds;
  request.sharing = QueueSharing::kTakeTurns;
  const StepPrediction turns = predictSteps(*module, request)->front();
  EXPECT_NEAR(turns.seconds, 2 * kKernel + kUpdate, 1e-15);
  EXPECT_LT(side, turns.seconds - 0.5e-6);
}

TEST_F(StepPredictionTest, AttentionIsThatOfTheRowThatRuns) {
  addAttention(tables, "attention.cudnn");
  auto module = tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  const StepPrediction step =
      predictSteps(*module, {roundGpu(), 1, 1})->front();
  const double flops = 128 * 129 / 2 * 4 * 8;
  const double memory = 4 * 128 * 8 * 2 / 1e9; // equal for both implementations
  ASSERT_GT(flops / 2e9, memory);
  EXPECT_NEAR(step.parts[size_t(StepPart::kAttention)].seconds, flops / 2e9,
              1e-15);
  EXPECT_EQ(step.rows(), std::vector<std::string>{"attention.cudnn"});
  // Without cuDNN our own kernel runs. If it is also disabled, none is left.
  PredictionRequest request = {roundGpu(), 1, 1};
  request.disabledKernels = {"attention.cudnn"};
  const StepPrediction own = predictSteps(*module, request)->front();
  EXPECT_NEAR(own.parts[size_t(StepPart::kAttention)].seconds, flops / 1e9,
              1e-15);
  EXPECT_EQ(own.rows(), std::vector<std::string>{"attention.cuda"});
  request.disabledKernels.push_back("attention.cuda");
  EXPECT_HAS(errorOf(predictSteps(*module, request)),
             "launch 'attention': disabled by --disable-kernels");
}

TEST_F(StepPredictionTest, RefusesADeviceOfTheOtherKind) {
  EXPECT_HAS(errorOf(predict(1, 1, DeviceProfile())),
             "'demo' was compiled for cuda, but default is a CPU; compile it "
             "with --target cpu");
  DemoTables cpu;
  auto module = cpu.load();
  EXPECT_HAS(errorOf(predictSteps(*module, {roundGpu(), 1, 1})),
             "'demo' was compiled for cpu, but round is a GPU");
  EXPECT_TRUE(predictSteps(*module, {DeviceProfile(), 1, 1}).isOk());
}

TEST_F(StepPredictionTest, RanksOfACpuCopyOnTheCoresOfTheirKernels) {
  DemoTables cpu;
  auto module = cpu.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  const DeviceProfile device;
  auto one = predictSteps(*module, {device, 1, 1});
  auto two = predictSteps(*module, {device, 2, 1});
  ASSERT_TRUE(one.isOk() && two.isOk());
  const double all =
      collectiveDemand(QLORA_COLLECTIVE_ALL_REDUCE, 72, 2, 1, device).seconds();
  // No kernel overlaps with the collective.
  EXPECT_NEAR(two->front().collectives[0].seconds, all, 1e-15);
  EXPECT_NEAR(two->front().seconds, one->front().seconds + all, 1e-12);
  EXPECT_NEAR(two->front().exposedCommunication, all, 1e-12);
}

} // namespace
} // namespace qlora
