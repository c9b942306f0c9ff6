// SPDX-License-Identifier: MIT

// Simulated clocks of queues: waits, and the cost of concurrent work. Comments
// derive the expected times.

#include "runtime/Predict/Timeline.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/ABI/module.h"

namespace qlora {
namespace {

using Kind = TimelineItem::Kind;

/// Returns a kernel that takes `arithmetic` seconds if bound by arithmetic, and
/// `memory` seconds if bound by memory.
TimelineItem kernel(uint32_t queue, double arithmetic, double memory,
                    double launch = 0) {
  TimelineItem item;
  item.queue = queue;
  item.demand.arithmetic = arithmetic;
  item.demand.memory = memory;
  item.demand.launch = launch;
  return item;
}

TimelineItem collective(double seconds) {
  TimelineItem item;
  item.kind = Kind::kCollective;
  item.queue = QLORA_QUEUE_COMMUNICATION;
  item.demand.serial = seconds;
  return item;
}

TimelineItem event(Kind kind, uint32_t queue, uint32_t number) {
  TimelineItem item;
  item.kind = kind;
  item.queue = queue;
  item.event = number;
  return item;
}

constexpr uint32_t kMain = QLORA_QUEUE_COMPUTE, kSide = QLORA_QUEUE_COPY,
                   kSend = QLORA_QUEUE_COMMUNICATION;

Timeline timelineOf(const std::vector<TimelineItem> &items) {
  return simulate(items);
}

TEST(Timeline, OneQueueIsASum) {
  // Each kernel takes the longer of its two times, plus its launch.
  Timeline timeline =
      timelineOf({kernel(kMain, 1, 3, 0.5), kernel(kMain, 2, 1, 0.5)});
  EXPECT_DOUBLE_EQ(timeline.seconds, 3.5 + 2.5);
  EXPECT_DOUBLE_EQ(timeline.overlapped, 0);
  EXPECT_DOUBLE_EQ(timeline.exposedCommunication, 0);
  EXPECT_DOUBLE_EQ(timelineOf({}).seconds, 0);
}

TEST(Timeline, SpansSayWhenEachRan) {
  // The side queue waits for the first kernel and runs concurrently with the
  // second kernel for one second. The main queue waits for the side queue: 2 +
  // max(1, 3) + 1 seconds.
  const std::vector<TimelineItem> items = {
      kernel(kMain, 2, 0), event(Kind::kRecord, kMain, 0),
      event(Kind::kWait, kSide, 0), kernel(kSide, 0, 3),
      event(Kind::kRecord, kSide, 1), kernel(kMain, 1, 0),
      event(Kind::kWait, kMain, 1), kernel(kMain, 1, 0)};
  std::vector<TimelineSpan> spans(items.size());
  EXPECT_DOUBLE_EQ(simulate(items, spans).seconds, 6);
  const double expected[][2] = {{0, 2}, {2, 2}, {2, 2}, {2, 5},
                                {5, 5}, {2, 3}, {5, 5}, {5, 6}};
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_DOUBLE_EQ(spans[i].start, expected[i][0]) << i;
    EXPECT_DOUBLE_EQ(spans[i].end, expected[i][1]) << i;
  }
}

TEST(Timeline, MemoryHidesBehindArithmetic) {
  Timeline timeline = timelineOf({kernel(kMain, 2, 0), kernel(kSide, 0, 1)});
  EXPECT_DOUBLE_EQ(timeline.seconds, 2);
  EXPECT_DOUBLE_EQ(timeline.overlapped, 1);
}

/// A backward pass of 2 s. A gradient bucket is sent after the first half.
/// Compute waits for the bucket at the end.
std::vector<TimelineItem> backward(double sendSeconds) {
  return {kernel(kMain, 1, 0),
          event(Kind::kRecord, kMain, 0),
          event(Kind::kWait, kSend, 0),
          collective(sendSeconds),
          kernel(kMain, 1, 0),
          event(Kind::kRecord, kSend, 1),
          event(Kind::kWait, kMain, 1)};
}

TEST(Timeline, NothingHidesWhereKernelsTakeTurns) {
  // Alone, the decode (side queue) takes 1 s and the GEMM (main queue) 2 s.
  // Each has half of the GPU until the decode ends at time 2. The other half of
  // the GEMM then takes 1 s.
  const std::vector<TimelineItem> items = {kernel(kMain, 2, 0),
                                           kernel(kSide, 0, 1)};
  std::vector<TimelineSpan> spans(items.size());
  const Timeline timeline =
      simulate(items, spans, QueueSharing::kTakeTurns);
  EXPECT_DOUBLE_EQ(timeline.seconds, 3);
  EXPECT_DOUBLE_EQ(timeline.overlapped, 0);
  EXPECT_DOUBLE_EQ(spans[1].end, 2);
  // With kTakeTurns, a collective still overlaps with kernels.
  EXPECT_DOUBLE_EQ(simulate(backward(0.75), {}, QueueSharing::kTakeTurns)
                       .exposedCommunication,
                   0);
}

TEST(Timeline, ACollectiveThatCopiesTakesTurns) {
  // The collective needs half a second of memory. It takes turns with the
  // kernel, so the step takes half a second longer, which is exposed.
  std::vector<TimelineItem> items = backward(0);
  items[3].demand.memory = 0.5;
  const Timeline timeline = timelineOf(items);
  EXPECT_DOUBLE_EQ(timeline.seconds, 2.5);
  EXPECT_DOUBLE_EQ(timeline.exposedCommunication, 0.5);
  EXPECT_DOUBLE_EQ(timeline.overlapped, 0);
  // With 3 seconds of memory, the step takes 3 seconds longer.
  items[3].demand.memory = 3;
  EXPECT_DOUBLE_EQ(timelineOf(items).seconds, 5);
  EXPECT_DOUBLE_EQ(timelineOf(items).exposedCommunication, 3);
}

TEST(Timeline, BandwidthIsShared) {
  // Two kernels that each need the full bandwidth gain nothing from
  // overlapping.
  Timeline two = timelineOf({kernel(kMain, 0, 1), kernel(kSide, 0, 1)});
  EXPECT_DOUBLE_EQ(two.seconds, 2);
  EXPECT_DOUBLE_EQ(two.overlapped, 0);
  // A GEMM and a decode need 1.5 times the bandwidth together. The decode ends
  // after 0.2 * 1.5 seconds, when 0.8 of the GEMM's second remain.
  Timeline mixed = timelineOf({kernel(kMain, 1, 0.5), kernel(kSide, 0, 0.2)});
  EXPECT_DOUBLE_EQ(mixed.seconds, 0.3 + 0.8);
  EXPECT_NEAR(mixed.overlapped, 0.1, 1e-12);
}

TEST(Timeline, AWaitIsAsLongAsItsEvent) {
  // The side queue takes 2 seconds. The main queue runs for 1, waits until 2,
  // and runs for 1.
  std::vector<TimelineItem> items = {kernel(kSide, 0, 2),
                                     event(Kind::kRecord, kSide, 0),
                                     kernel(kMain, 1, 0),
                                     event(Kind::kWait, kMain, 0),
                                     kernel(kMain, 1, 0)};
  EXPECT_DOUBLE_EQ(timelineOf(items).seconds, 3);
  // Without the wait the side queue does not delay the main queue.
  items.erase(items.begin() + 3);
  EXPECT_DOUBLE_EQ(timelineOf(items).seconds, 2);
  // Waiting for an event that has already happened takes no time.
  items[0] = kernel(kSide, 0, 0.5);
  items.insert(items.begin() + 3, event(Kind::kWait, kMain, 0));
  EXPECT_DOUBLE_EQ(timelineOf(items).seconds, 2);
}

TEST(Timeline, OnlyWhatNothingHidesIsExposed) {
  Timeline hidden = timelineOf(backward(0.75));
  EXPECT_DOUBLE_EQ(hidden.seconds, 2);
  EXPECT_DOUBLE_EQ(hidden.exposedCommunication, 0);
  EXPECT_DOUBLE_EQ(hidden.overlapped, 0);
  Timeline exposed = timelineOf(backward(1.75));
  EXPECT_DOUBLE_EQ(exposed.seconds, 2.75);
  EXPECT_DOUBLE_EQ(exposed.exposedCommunication, 0.75);
  // A group of one rank sends nothing.
  EXPECT_DOUBLE_EQ(timelineOf(backward(0)).seconds, 2);
}

TEST(Timeline, SecondsAreTheirParts) {
  std::vector<TimelineItem> items = backward(2.5);
  items.push_back(kernel(kSide, 0.1, 0.4));
  items.push_back(kernel(kSide, 0.3, 0.9, 0.01));
  double alone = 0;
  for (const TimelineItem &item : items)
    if (item.kind == Kind::kKernel)
      alone += item.demand.seconds();
  const Timeline timeline = timelineOf(items);
  EXPECT_NEAR(timeline.seconds,
              alone - timeline.overlapped + timeline.exposedCommunication,
              1e-12);
}

TimelineItem transfer(Kind kind, int peer, double seconds, uint64_t bytes = 8) {
  TimelineItem item = collective(seconds);
  item.kind = kind;
  item.peer = peer;
  item.bytes = bytes;
  return item;
}

using Stages = std::vector<std::vector<TimelineItem>>;

/// Two stages. For each chunk, stage 0 computes and sends; stage 1 receives and
/// computes.
Stages pipeline(int chunks) {
  Stages stages(2);
  const auto add = [&](int stage, std::vector<TimelineItem> items) {
    stages[stage].insert(stages[stage].end(), items.begin(), items.end());
  };
  for (uint32_t chunk = 0; chunk < uint32_t(chunks); ++chunk) {
    add(0, {kernel(kMain, 1, 0), event(Kind::kRecord, kMain, chunk),
            event(Kind::kWait, kSend, chunk), transfer(Kind::kSend, 1, 0.5)});
    add(1,
        {transfer(Kind::kReceive, -1, 0.5), event(Kind::kRecord, kSend, chunk),
         event(Kind::kWait, kMain, chunk), kernel(kMain, 3, 0)});
  }
  return stages;
}

TEST(Timeline, AStageWaitsForWhatItReceives) {
  // Stage 0 computes for 1 second and sends for 0.5; then stage 1 needs 3
  // seconds per chunk.
  for (const int chunks : {1, 2, 4}) {
    auto ended = simulateStages(pipeline(chunks));
    ASSERT_TRUE(ended.isOk()) << ended.status().message();
    EXPECT_DOUBLE_EQ((*ended)[1].seconds, 1.5 + 3 * chunks);
    EXPECT_DOUBLE_EQ((*ended)[1].exposedCommunication, 1.5);
    // Stage 0 ends with the last chunk's send, with which nothing overlaps.
    EXPECT_DOUBLE_EQ((*ended)[0].seconds, chunks + 0.5);
    EXPECT_DOUBLE_EQ((*ended)[0].exposedCommunication, 0.5);
  }
}

TEST(Timeline, ASenderWaitsForItsReceiver) {
  // The receiver is ready after 5 seconds, so the send waits.
  const Stages late = {{transfer(Kind::kSend, 1, 2)},
                       {kernel(kSend, 5, 0), transfer(Kind::kReceive, -1, 2)}};
  auto ended = simulateStages(late);
  ASSERT_TRUE(ended.isOk()) << ended.status().message();
  EXPECT_DOUBLE_EQ((*ended)[0].seconds, 7);
  EXPECT_DOUBLE_EQ((*ended)[0].exposedCommunication, 7);
  EXPECT_DOUBLE_EQ((*ended)[1].exposedCommunication, 2);
  // Without a receiver, the send does not wait.
  EXPECT_DOUBLE_EQ(timelineOf(late[0]).seconds, 2);
}

TEST(Timeline, RefusesStagesThatDoNotMeet) {
  const auto errorOf = [](const Stages &stages) {
    return simulateStages(stages).status().message();
  };
  EXPECT_EQ(errorOf({{transfer(Kind::kSend, 1, 1, 8)},
                     {transfer(Kind::kReceive, -1, 1, 4)}}),
            "stage 0 sends 8 bytes, but stage 1 receives 4");
  EXPECT_EQ(
      errorOf({{transfer(Kind::kSend, 1, 1)}, {transfer(Kind::kSend, -1, 1)}}),
      "stage 0 sends 8 bytes, but stage 1 sends 8");
  EXPECT_EQ(errorOf({{transfer(Kind::kSend, 1, 1)}, {}}),
            "deadlock: stages wait for each other");
}

} // namespace
} // namespace qlora
