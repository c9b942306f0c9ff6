// SPDX-License-Identifier: MIT

// Implements placeWaits() and spansBeside() with vector clocks.

#include "compiler/Support/QueueOrder.h"

#include <algorithm>
#include <cassert>
#include <functional>

using namespace qlora;

namespace {
/// For every queue, one past the newest command known to be finished.
using Clock = std::vector<int64_t>;
} // namespace

static void join(Clock &clock, const Clock &other) {
  for (size_t queue = 0; queue < clock.size(); ++queue)
    clock[queue] = std::max(clock[queue], other[queue]);
}

template <typename Command>
static std::vector<Clock> idleQueues(std::span<const Command> commands,
                                     unsigned atLeast = 0) {
  size_t queues = atLeast;
  for (const Command &command : commands)
    queues = std::max<size_t>(queues, command.queue + 1);
  return std::vector<Clock>(queues, Clock(queues, 0));
}

std::vector<QueueWait> qlora::placeWaits(std::span<const QueuedWork> commands) {
  std::vector<QueueWait> waits;
  std::vector<Clock> clocks = idleQueues(commands);
  std::vector<Clock> finished(commands.size()); ///< clock after each command
  for (size_t i = 0; i < commands.size(); ++i) {
    Clock &clock = clocks[commands[i].queue];
    std::vector<size_t> after = commands[i].after;
    // Newest first: a wait for the newest command may imply the other waits.
    std::sort(after.begin(), after.end(), std::greater<>());
    for (size_t producer : after) {
      assert(producer < i && "comes after one that is issued later");
      unsigned queue = commands[producer].queue;
      if (queue == commands[i].queue ||
          clock[queue] > static_cast<int64_t>(producer))
        continue;
      waits.push_back({producer, i});
      join(clock, finished[producer]);
    }
    clock[commands[i].queue] = i + 1;
    finished[i] = clock;
  }
  return waits;
}

std::vector<CommandSpan>
qlora::spansBeside(std::span<const QueueCommand> commands, unsigned main) {
  std::vector<CommandSpan> spans(commands.size());
  std::vector<Clock> clocks = idleQueues(commands, main + 1);
  std::vector<Clock> events;
  // Per queue: the positions of its commands, and how many of these commands
  // are known to be finished when the next command of `main` starts.
  std::vector<std::vector<size_t>> issued(clocks.size());
  std::vector<size_t> known(clocks.size(), 0);
  for (size_t i = 0; i < commands.size(); ++i) {
    const QueueCommand &command = commands[i];
    Clock &clock = clocks[command.queue];
    if (command.action == QueueAction::Wait) {
      assert(command.event < events.size() && "waits before the record");
      join(clock, events[command.event]);
    }
    clock[command.queue] = i + 1;
    if (command.action == QueueAction::Record) {
      if (events.size() <= command.event)
        events.resize(command.event + 1, Clock(clocks.size(), 0));
      events[command.event] = clock;
    }
    if (command.queue != main) {
      spans[i] = {clock[main], static_cast<int64_t>(commands.size()) - 1};
      issued[command.queue].push_back(i);
      continue;
    }
    spans[i] = {static_cast<int64_t>(i), static_cast<int64_t>(i)};
    for (size_t queue = 0; queue < clocks.size(); ++queue)
      for (; known[queue] < issued[queue].size() &&
             static_cast<int64_t>(issued[queue][known[queue]]) < clock[queue];
           ++known[queue])
        spans[issued[queue][known[queue]]].last = i;
  }
  return spans;
}
