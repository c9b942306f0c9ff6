// SPDX-License-Identifier: MIT

// From one end of a kernel to the next (Timeline.h).

#include "runtime/Predict/Timeline.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <vector>

#include "runtime/ABI/module.h"

namespace qlora {

namespace {

using Kind = TimelineItem::Kind;

/// The items of one queue, and how much is left of the one that runs.
struct Queue {
  std::vector<const TimelineItem *> items;
  size_t next = 0;
  const TimelineItem *running = nullptr;
  double left = 0; ///< seconds, were it alone
};

class Simulation {
public:
  Simulation(std::span<const TimelineItem> items,
             std::span<TimelineSpan> spans, QueueSharing sharing);
  Timeline run();

private:
  bool advance(Queue &queue);
  double slowdown() const;
  void step();
  void begin(const TimelineItem &item);
  void finish(const TimelineItem &item);

  std::array<Queue, QLORA_QUEUE_COUNT> queues;
  std::vector<bool> happened; ///< by event
  std::span<const TimelineItem> items;
  std::span<TimelineSpan> spans; ///< of the items, or empty
  QueueSharing sharing;
  Timeline result;
};

} // namespace

Simulation::Simulation(std::span<const TimelineItem> items,
                       std::span<TimelineSpan> spans, QueueSharing sharing)
    : items(items), spans(spans), sharing(sharing) {
  assert((spans.empty() || spans.size() == items.size()) && "one for each");
  for (const TimelineItem &item : items) {
    queues[item.queue].items.push_back(&item);
    if (item.event >= happened.size())
      happened.resize(item.event + 1);
  }
}

void Simulation::begin(const TimelineItem &item) {
  if (!spans.empty())
    spans[size_t(&item - items.data())] = {result.seconds, result.seconds};
}

void Simulation::finish(const TimelineItem &item) {
  if (!spans.empty())
    spans[size_t(&item - items.data())].end = result.seconds;
}

/// Starts the queue's next kernel, past events; whether anything changed.
bool Simulation::advance(Queue &queue) {
  bool changed = false;
  while (!queue.running && queue.next < queue.items.size()) {
    const TimelineItem &item = *queue.items[queue.next];
    if (item.kind == Kind::kWait && !happened[item.event])
      return changed;
    changed = true;
    ++queue.next;
    begin(item);
    if (item.kind == Kind::kRecord)
      happened[item.event] = true;
    if (item.kind != Kind::kKernel && item.kind != Kind::kCollective)
      continue;
    queue.running = &item;
    queue.left = item.demand.seconds();
    if (item.kind == Kind::kKernel)
      result.overlapped += queue.left;
  }
  return changed;
}

/// By how much the kernels that run now are slower than alone.
double Simulation::slowdown() const {
  double arithmetic = 0, memory = 0, kernels = 0;
  for (const Queue &queue : queues) {
    if (!queue.running || queue.running->kind != Kind::kKernel)
      continue;
    const Demand &demand = queue.running->demand;
    const double alone = demand.seconds();
    if (alone <= 0)
      continue;
    ++kernels;
    arithmetic += demand.arithmetic / alone;
    memory += demand.memory / alone;
  }
  return sharing == QueueSharing::kTakeTurns
             ? std::max(1.0, kernels)
             : std::max({1.0, arithmetic, memory});
}

/// Until the first of those that run has ended.
void Simulation::step() {
  const double slow = slowdown();
  const auto factor = [&](const Queue &queue) {
    return queue.running->kind == Kind::kKernel ? slow : 1.0;
  };
  const Queue *first = nullptr;
  bool hasKernel = false;
  for (const Queue &queue : queues) {
    if (!queue.running)
      continue;
    hasKernel |= queue.running->kind == Kind::kKernel;
    if (!first || queue.left * factor(queue) < first->left * factor(*first))
      first = &queue;
  }
  assert(first && "an event that is waited for before it is recorded");
  const double passed = first->left * factor(*first);
  result.seconds += passed;
  (hasKernel ? result.overlapped : result.exposedCommunication) +=
      hasKernel ? -passed : passed;
  for (Queue &queue : queues) {
    if (!queue.running)
      continue;
    queue.left = &queue == first
                     ? 0
                     : std::max(0.0, queue.left - passed / factor(queue));
    if (queue.left > 0)
      continue;
    finish(*queue.running);
    queue.running = nullptr;
  }
}

Timeline Simulation::run() {
  const auto isBusy = [](const Queue &queue) {
    return queue.running || queue.next < queue.items.size();
  };
  for (;;) {
    for (bool changed = true; changed;) {
      changed = false;
      for (Queue &queue : queues)
        changed |= advance(queue);
    }
    if (std::none_of(queues.begin(), queues.end(), isBusy))
      break;
    step();
  }
  // Rounding of sums.
  result.overlapped = sharing == QueueSharing::kTakeTurns
                          ? 0
                          : std::max(0.0, result.overlapped);
  return result;
}

Timeline simulate(std::span<const TimelineItem> items,
                  std::span<TimelineSpan> spans, QueueSharing sharing) {
  return Simulation(items, spans, sharing).run();
}

} // namespace qlora
