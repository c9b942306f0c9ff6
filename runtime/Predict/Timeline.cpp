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

/// Who runs at once, and by how much each is slower than alone.
struct Sharing {
  double kernels = 0, collectives = 0; ///< that use the device
  double slowdown = 1;
};

class Simulation {
public:
  Simulation(std::span<const TimelineItem> items,
             std::span<TimelineSpan> spans, QueueSharing sharing);
  Timeline run();

private:
  bool advance(Queue &queue);
  Sharing sharingNow() const;
  void count(double passed, const Sharing &now);
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

/// True for what keeps busy the device that kernels run on.
static bool usesDevice(const TimelineItem &item) {
  return item.kind == Kind::kKernel || item.demand.memory > 0;
}

Sharing Simulation::sharingNow() const {
  double arithmetic = 0, memory = 0;
  Sharing now;
  for (const Queue &queue : queues) {
    if (!queue.running || !usesDevice(*queue.running))
      continue;
    const Demand &demand = queue.running->demand;
    const double alone = demand.seconds();
    if (alone <= 0)
      continue;
    ++(queue.running->kind == Kind::kKernel ? now.kernels : now.collectives);
    arithmetic += demand.arithmetic / alone;
    memory += demand.memory / alone;
  }
  const bool inTurns =
      sharing == QueueSharing::kTakeTurns || now.collectives > 0;
  now.slowdown = inTurns ? std::max(1.0, now.kernels + now.collectives)
                         : std::max({1.0, arithmetic, memory});
  return now;
}

/// Adds what passed to what it was for.
void Simulation::count(double passed, const Sharing &now) {
  const double collective =
      now.kernels > 0
          ? passed * now.collectives / (now.kernels + now.collectives)
          : passed;
  result.seconds += passed;
  result.exposedCommunication += collective;
  result.overlapped -= passed - collective;
}

/// Until the first of those that run has ended.
void Simulation::step() {
  const Sharing now = sharingNow();
  const auto factor = [&](const Queue &queue) {
    return usesDevice(*queue.running) ? now.slowdown : 1.0;
  };
  const Queue *first = nullptr;
  for (const Queue &queue : queues) {
    if (!queue.running)
      continue;
    if (!first || queue.left * factor(queue) < first->left * factor(*first))
      first = &queue;
  }
  assert(first && "an event that is waited for before it is recorded");
  const double passed = first->left * factor(*first);
  count(passed, now);
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
