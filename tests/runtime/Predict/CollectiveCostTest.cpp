// SPDX-License-Identifier: MIT

// Costs of collectives: GPUs in rings, and CPU ranks through windows of shared
// memory. Rates are round, and comments derive the expected costs.

#include "runtime/Predict/CollectiveCost.h"

#include <gtest/gtest.h>

#include "runtime/ABI/collective.h"

namespace qlora {
namespace {

/// Nodes of 8 GPUs: 10 MB/s inside a node, 1 MB/s between nodes, and a latency
/// of 1 us.
DeviceProfile gpu() {
  DeviceProfile device;
  GpuRates &gpu = device.gpu.emplace();
  gpu.gpusPerNode = 8;
  gpu.nodeLinkGbps = 0.01;
  gpu.networkGbps = 0.001;
  gpu.allReduceMicroseconds = 1;
  return device;
}

DeviceProfile cpu() {
  DeviceProfile device;
  device.copyGbps = 1;
  return device;
}

TEST(CollectiveCost, AGroupOfOneSendsNothing) {
  for (const DeviceProfile &device : {gpu(), cpu()})
    EXPECT_EQ(collectiveDemand(QLORA_COLLECTIVE_ALL_REDUCE, 1e6, 1, 1, device)
                  .seconds(),
              0);
}

TEST(CollectiveCost, GpusHaveARingInANodeAndOneOfNodes) {
  const auto seconds = [](int64_t ranks) {
    const Demand demand =
        collectiveDemand(QLORA_COLLECTIVE_ALL_REDUCE, 1e6, ranks, 1, gpu());
    EXPECT_EQ(demand.serial, demand.seconds());
    return demand.seconds();
  };
  EXPECT_DOUBLE_EQ(seconds(8), 1e-6 + 1.75e6 / 1e7);
  EXPECT_DOUBLE_EQ(seconds(16), 2e-6 + 1.75e6 / 1e7 + 1e6 / 8 / 1e6);
}

/// Stage peers are as many ranks apart as a stage has ranks.
TEST(CollectiveCost, GpusOfStagesAreApart) {
  const auto seconds = [](unsigned kind, int64_t stride) {
    return collectiveDemand(kind, 1e6, 2, stride, gpu()).seconds();
  };
  EXPECT_DOUBLE_EQ(seconds(QLORA_COLLECTIVE_SEND, 4), 1e-6 + 1e6 / 1e7);
  EXPECT_DOUBLE_EQ(seconds(QLORA_COLLECTIVE_RECV, 8), 1e-6 + 1e6 / 1e6);
  // A ring of two nodes with one GPU each.
  EXPECT_DOUBLE_EQ(seconds(QLORA_COLLECTIVE_ALL_REDUCE, 8), 2e-6 + 1e6 / 1e6);
}

TEST(CollectiveCost, RanksOfACpuCopyThroughAWindow) {
  const auto memory = [](unsigned kind, int64_t ranks) {
    return collectiveDemand(kind, 4e6, ranks, 1, cpu()).memory;
  };
  // Each rank copies 4 MB in and out of the window, with two accesses per copy.
  // Adding half of the data takes three accesses: 4 + 1.5 accesses of 4 MB.
  EXPECT_DOUBLE_EQ(memory(QLORA_COLLECTIVE_ALL_REDUCE, 2), 5.5 * 4e-3);
  // Each rank copies its own half into the result and the window, and the other
  // half out of the window: 3 halves with two accesses each.
  EXPECT_DOUBLE_EQ(memory(QLORA_COLLECTIVE_ALL_GATHER, 2), 3 * 4e-3);
  EXPECT_DOUBLE_EQ(memory(QLORA_COLLECTIVE_ALL_GATHER, 4), 2.5 * 4e-3);
  EXPECT_GT(memory(QLORA_COLLECTIVE_REDUCE_SCATTER, 2),
            memory(QLORA_COLLECTIVE_ALL_REDUCE, 2));
}

TEST(CollectiveCost, RanksOfACpuMeetForEachMiB) {
  const auto meetings = [](unsigned kind, double mib, int64_t ranks) {
    return collectiveDemand(kind, mib * (1 << 20), ranks, 1, cpu()).launch;
  };
  const double once = meetings(QLORA_COLLECTIVE_ALL_GATHER, 1, 2);
  EXPECT_GT(once, 0);
  // A round transfers 1 MiB of each rank. In an all-gather, two ranks have
  // 2 MiB each: 2 rounds. In an all-reduce, each has 4 MiB: 4 rounds, each
  // synchronized twice.
  EXPECT_DOUBLE_EQ(meetings(QLORA_COLLECTIVE_ALL_GATHER, 4, 2), 2 * once);
  EXPECT_DOUBLE_EQ(meetings(QLORA_COLLECTIVE_ALL_REDUCE, 4, 2), 8 * once);
  // Four ranks have 1 MiB each: 1 round. A round of N ranks needs N - 1
  // messages.
  EXPECT_DOUBLE_EQ(meetings(QLORA_COLLECTIVE_ALL_GATHER, 4, 4), 3 * once);
}

/// Three machines of two ranks. A message takes 1 us through a window, 2 us
/// through a socket and 100 us over the network.
DeviceProfile measured() {
  DeviceProfile device = cpu();
  device.links.window = {1, 2};
  device.links.sockets = {2, 0.5};
  device.links.network = {100, 0.1};
  device.links.ranksPerNode = 2;
  return device;
}

TEST(CollectiveCost, MeasuredRanksOfAMachineHaveTheirRates) {
  const Demand sum = collectiveDemand(QLORA_COLLECTIVE_ALL_REDUCE,
                                      2.0 * (1 << 20), 2, 1, measured());
  EXPECT_DOUBLE_EQ(sum.memory, 5.5 * 2 * (1 << 20) / 2e9);
  EXPECT_DOUBLE_EQ(sum.launch, 2 * 2 * 1e-6); // two rounds, synchronized twice
  const Demand exchange =
      collectiveDemand(QLORA_COLLECTIVE_ALL_TO_ALL, 4e6, 2, 1, measured());
  // Half of the data is sent, and packing it moves as many bytes.
  EXPECT_DOUBLE_EQ(exchange.memory, (2e6 + 2e6) / 5e8);
  EXPECT_DOUBLE_EQ(exchange.launch, 2e-6);
  EXPECT_EQ(exchange.serial, 0);
}

TEST(CollectiveCost, BetweenMachinesARingTakesNoTurns) {
  const auto demand = [](unsigned kind, int64_t ranks, int64_t stride) {
    return collectiveDemand(kind, 1 << 20, ranks, stride, measured());
  };
  // An all-reduce of six ranks takes 2 * 6 - 3 time slots, and one more for
  // each of its 4 chunks. The data is sent twice. In addition, one chunk is
  // sent 8 times on its way to the last rank and back.
  const Demand sum = demand(QLORA_COLLECTIVE_ALL_REDUCE, 6, 1);
  EXPECT_EQ(sum.memory, 0);
  EXPECT_DOUBLE_EQ(sum.launch, 13 * 100e-6);
  EXPECT_DOUBLE_EQ(sum.serial, 4.0 * (1 << 20) / 1e8);
  // The first rank sends 4 chunks. The second rank returns each sum one time
  // slot later, so two ranks need the time of 5 chunks.
  EXPECT_DOUBLE_EQ(demand(QLORA_COLLECTIVE_ALL_REDUCE, 2, 2).serial,
                   1.25 * (1 << 20) / 1e8);
  EXPECT_EQ(demand(QLORA_COLLECTIVE_ALL_REDUCE, 2, 1).serial, 0);
  EXPECT_DOUBLE_EQ(demand(QLORA_COLLECTIVE_ALL_GATHER, 4, 1).seconds(),
                   3 * 100e-6 + 0.75 * (1 << 20) / 1e8);
  EXPECT_DOUBLE_EQ(demand(QLORA_COLLECTIVE_ALL_TO_ALL, 4, 1).seconds(),
                   3 * 100e-6 + 1.5 * (1 << 20) / 1e8);
  EXPECT_DOUBLE_EQ(demand(QLORA_COLLECTIVE_BROADCAST, 4, 1).seconds(),
                   6 * 100e-6 + 1.5 * (1 << 20) / 1e8);
  EXPECT_DOUBLE_EQ(demand(QLORA_COLLECTIVE_SEND, 2, 3).seconds(),
                   100e-6 + (1 << 20) / 1e8);
}

} // namespace
} // namespace qlora
