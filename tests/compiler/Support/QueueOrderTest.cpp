// SPDX-License-Identifier: MIT

// placeWaits and spansBeside: known orders, and random orders compared with the
// transitive closure of the order that queues and events impose.

#include "compiler/Support/QueueOrder.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

using namespace qlora;

namespace {

constexpr QueueAction kWork = QueueAction::Work;
constexpr QueueAction kRecord = QueueAction::Record;
constexpr QueueAction kWait = QueueAction::Wait;

using Pairs = std::vector<std::pair<size_t, size_t>>;

Pairs pairsOf(const std::vector<QueueWait> &waits) {
  Pairs pairs;
  for (const QueueWait &wait : waits)
    pairs.push_back({wait.producer, wait.consumer});
  return pairs;
}

TEST(PlaceWaits, NoneOnOneQueue) {
  EXPECT_TRUE(placeWaits(std::vector<QueuedWork>{{0, {}}, {0, {0}}}).empty());
  EXPECT_TRUE(placeWaits({}).empty());
}

TEST(PlaceWaits, DropsWhatIsImplied) {
  // Command 2 (queue 1) must follow commands 0 and 1 (queue 0), so it waits
  // only for 1. Command 3 (queue 2) follows 2. Command 4 (queue 2) needs no
  // wait for 0, because 3 precedes it. Command 5 (queue 1) waits only for 4,
  // which implies 3; queue 1 has already waited for 1.
  std::vector<QueuedWork> commands = {
      {0, {}}, {0, {}}, {1, {0, 1}}, {2, {2}}, {2, {0}}, {1, {4, 1, 3}}};
  EXPECT_EQ(pairsOf(placeWaits(commands)), (Pairs{{1, 2}, {2, 3}, {4, 5}}));
}

TEST(PlaceWaits, TwoBuffersInTurn) {
  // Queue 1 decodes weights 0 to 3 into two buffers alternately; queue 0 uses
  // them. Commands in order: decode 0, decode 1, use 0, decode 2 (into the
  // buffer of weight 0), use 1, decode 3, use 2, use 3.
  std::vector<QueuedWork> commands = {{1, {}},  {1, {}},     {0, {0}},
                                      {1, {2}}, {0, {1}},    {1, {4}},
                                      {0, {3}}, {0, {5, 3}}};
  EXPECT_EQ(pairsOf(placeWaits(commands)),
            (Pairs{{0, 2}, {2, 3}, {1, 4}, {4, 5}, {3, 6}, {5, 7}}));
}

TEST(SpansBeside, AsInTheHeader) {
  std::vector<QueueCommand> commands = {
      {kWork, 0, 0}, {kRecord, 0, 0}, {kWait, 1, 0}, {kWork, 1, 0},
      {kWork, 0, 0}, {kRecord, 1, 1}, {kWait, 0, 1}, {kWork, 0, 0}};
  std::vector<CommandSpan> spans = spansBeside(commands, 0);
  EXPECT_EQ(spans[0].first, 0);
  EXPECT_EQ(spans[0].last, 0);
  EXPECT_EQ(spans[3].first, 2);
  EXPECT_EQ(spans[3].last, 6);
  EXPECT_EQ(spans[7].first, 7);
  // Without the waits, command 3 may run at any time.
  commands[2].action = commands[6].action = kWork;
  spans = spansBeside(commands, 0);
  EXPECT_EQ(spans[3].first, 0);
  EXPECT_EQ(spans[3].last, 7);
}

/// Returns a matrix: [j][i] is true if command i has finished when command j
/// starts. Follows the edges one by one.
std::vector<std::vector<bool>>
orderOf(const std::vector<QueueCommand> &commands) {
  size_t n = commands.size();
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n));
  auto addEdge = [&](size_t from, size_t to) {
    before[to][from] = true;
    for (size_t i = 0; i < from; ++i)
      if (before[from][i])
        before[to][i] = true;
  };
  std::map<unsigned, size_t> newest, recorded;
  for (size_t i = 0; i < n; ++i) {
    if (auto it = newest.find(commands[i].queue); it != newest.end())
      addEdge(it->second, i);
    if (commands[i].action == kWait)
      addEdge(recorded.at(commands[i].event), i);
    if (commands[i].action == kRecord)
      recorded[commands[i].event] = i;
    newest[commands[i].queue] = i;
  }
  return before;
}

/// Returns the work with its events. `position[i]` is the index of work i in
/// the result.
std::vector<QueueCommand> withEvents(const std::vector<QueuedWork> &work,
                                     const std::vector<QueueWait> &waits,
                                     std::vector<size_t> &position) {
  std::vector<QueueCommand> commands;
  for (size_t i = 0; i < work.size(); ++i) {
    for (const QueueWait &wait : waits)
      if (wait.consumer == i)
        commands.push_back({kWait, work[i].queue, unsigned(wait.producer)});
    position.push_back(commands.size());
    commands.push_back({kWork, work[i].queue, 0});
    commands.push_back({kRecord, work[i].queue, unsigned(i)});
  }
  return commands;
}

std::vector<QueuedWork> randomWork(std::mt19937 &random) {
  std::vector<QueuedWork> work(1 + random() % 25);
  for (size_t i = 0; i < work.size(); ++i) {
    work[i].queue = random() % 3;
    for (int n = i ? random() % 3 : 0; n > 0; --n)
      work[i].after.push_back(random() % i);
  }
  return work;
}

TEST(PlaceWaits, RandomAgainstClosure) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<QueuedWork> work = randomWork(random);
    std::vector<QueueWait> waits = placeWaits(work);
    std::vector<size_t> position;
    auto before = orderOf(withEvents(work, waits, position));
    for (size_t i = 0; i < work.size(); ++i)
      for (size_t producer : work[i].after)
        EXPECT_TRUE(before[position[i]][position[producer]]);
    // Without the last wait, a required order is missing.
    if (waits.empty())
      continue;
    QueueWait last = waits.back();
    waits.pop_back();
    position.clear();
    before = orderOf(withEvents(work, waits, position));
    EXPECT_FALSE(before[position[last.consumer]][position[last.producer]]);
  }
}

TEST(SpansBeside, RandomAgainstClosure) {
  std::mt19937 random(12);
  for (int round = 0; round < 300; ++round) {
    std::vector<QueuedWork> work = randomWork(random);
    std::vector<size_t> position;
    auto commands = withEvents(work, placeWaits(work), position);
    auto before = orderOf(commands);
    std::vector<CommandSpan> spans = spansBeside(commands, 0);
    for (size_t a : position)
      for (size_t b : position)
        EXPECT_TRUE(spans[a].last >= spans[b].first || before[b][a])
            << a << " before " << b;
  }
}

} // namespace
