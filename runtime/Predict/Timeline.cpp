// SPDX-License-Identifier: MIT

// Simulates a timeline from the end of one kernel to the next (Timeline.h).

#include "runtime/Predict/Timeline.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <iterator>
#include <limits>
#include <vector>

#include "runtime/ABI/module.h"

namespace qlora {

namespace {

using Kind = TimelineItem::Kind;

/// The items of a queue, and which of them is running.
struct Queue {
  std::vector<const TimelineItem *> items;
  size_t next = 0;
  const TimelineItem *running = nullptr;
  double left = 0; ///< seconds left of `running`, if it ran alone
  bool isWaiting = false; ///< waits for another stage to reach a transfer
};

/// Items that run at once, and their slowdown compared with running alone.
struct Sharing {
  double kernels = 0, collectives = 0; ///< number of items that use the device
  double slowdown = 1;
};

/// Simulates the timeline of one rank.
class Simulation {
public:
  /// If `isAlone`, never waits for other stages.
  Simulation(std::span<const TimelineItem> items, std::span<TimelineSpan> spans,
             QueueSharing sharing, bool isAlone);
  /// Starts all items that can start.
  void advance();
  bool isBusy() const;
  /// Seconds until the first running item ends; infinite if none runs.
  double untilNext() const;
  void pass(double seconds);
  /// Returns the queue that waits for the stage at distance `peer`, or null.
  Queue *waitingFor(int peer);
  Timeline ended() const;

private:
  bool advance(Queue &queue);
  Sharing sharingNow() const;
  double secondsLeft(const Queue &queue, const Sharing &now) const;
  void count(double passed, const Sharing &now);
  void begin(const TimelineItem &item);
  void finish(const TimelineItem &item);

  std::array<Queue, QLORA_QUEUE_COUNT> queues;
  std::vector<bool> happened; ///< index: event
  std::span<const TimelineItem> items;
  std::span<TimelineSpan> spans; ///< spans of the items, or empty
  QueueSharing sharing;
  bool isAlone;
  Timeline result;
};

} // namespace

static bool isOfTwo(const TimelineItem &item) {
  return item.kind == Kind::kSend || item.kind == Kind::kReceive;
}

Simulation::Simulation(std::span<const TimelineItem> items,
                       std::span<TimelineSpan> spans, QueueSharing sharing,
                       bool isAlone)
    : items(items), spans(spans), sharing(sharing), isAlone(isAlone) {
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

/// Handles events and starts the queue's next item. False: nothing changed.
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
    if (item.kind == Kind::kRecord || item.kind == Kind::kWait)
      continue;
    queue.running = &item;
    queue.left = item.demand.seconds();
    queue.isWaiting = isOfTwo(item) && !isAlone;
    if (item.kind == Kind::kKernel)
      result.overlapped += queue.left;
  }
  return changed;
}

/// Returns whether an item occupies the device that kernels run on.
static bool usesDevice(const TimelineItem &item) {
  return item.kind == Kind::kKernel || item.demand.memory > 0;
}

Sharing Simulation::sharingNow() const {
  double arithmetic = 0, memory = 0;
  Sharing now;
  for (const Queue &queue : queues) {
    if (!queue.running || queue.isWaiting || !usesDevice(*queue.running))
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

/// Adds `passed` seconds to the total, exposed communication and overlap.
void Simulation::count(double passed, const Sharing &now) {
  const double collective =
      now.kernels > 0
          ? passed * now.collectives / (now.kernels + now.collectives)
          : passed;
  result.seconds += passed;
  result.exposedCommunication += collective;
  result.overlapped -= passed - collective;
}

double Simulation::secondsLeft(const Queue &queue, const Sharing &now) const {
  return queue.left * (usesDevice(*queue.running) ? now.slowdown : 1.0);
}

double Simulation::untilNext() const {
  const Sharing now = sharingNow();
  double first = std::numeric_limits<double>::infinity();
  for (const Queue &queue : queues)
    if (queue.running && !queue.isWaiting)
      first = std::min(first, secondsLeft(queue, now));
  return first;
}

void Simulation::pass(double passed) {
  const Sharing now = sharingNow();
  count(passed, now);
  for (Queue &queue : queues) {
    if (!queue.running || queue.isWaiting)
      continue;
    const double left = secondsLeft(queue, now);
    queue.left = left <= passed ? 0 : queue.left * (1 - passed / left);
    if (queue.left > 0)
      continue;
    finish(*queue.running);
    queue.running = nullptr;
  }
}

void Simulation::advance() {
  for (bool changed = true; changed;) {
    changed = false;
    for (Queue &queue : queues)
      changed |= advance(queue);
  }
}

bool Simulation::isBusy() const {
  return std::ranges::any_of(queues, [](const Queue &queue) {
    return queue.running || queue.next < queue.items.size();
  });
}

Queue *Simulation::waitingFor(int peer) {
  const auto found = std::ranges::find_if(queues, [&](const Queue &queue) {
    return queue.isWaiting && queue.running->peer == peer;
  });
  return found == queues.end() ? nullptr : &*found;
}

Timeline Simulation::ended() const {
  // Rounding can make `overlapped` slightly negative.
  Timeline all = result;
  all.overlapped =
      sharing == QueueSharing::kTakeTurns ? 0 : std::max(0.0, all.overlapped);
  return all;
}

Timeline simulate(std::span<const TimelineItem> items,
                  std::span<TimelineSpan> spans, QueueSharing sharing) {
  Simulation rank(items, spans, sharing, /*isAlone=*/true);
  for (rank.advance(); rank.isBusy(); rank.advance()) {
    const double next = rank.untilNext();
    assert(next < std::numeric_limits<double>::infinity() &&
           "an event that is waited for before it is recorded");
    rank.pass(next);
  }
  return rank.ended();
}

/// Starts the transfer between stage `one` and the stage `places` after it
/// (modulo the number of stages), if both have reached it.
static Status meet(std::vector<Simulation> &ranks, size_t one, int places) {
  const size_t other = (one + static_cast<size_t>(places)) % ranks.size();
  Queue *const own = ranks[one].waitingFor(places);
  Queue *const theirs = own ? ranks[other].waitingFor(-places) : nullptr;
  if (!theirs)
    return Status::ok();
  const auto verb = [](const Queue *queue) {
    return queue->running->kind == Kind::kSend ? "sends" : "receives";
  };
  if (own->running->kind == theirs->running->kind ||
      own->running->bytes != theirs->running->bytes)
    return Status::dataLoss("stage {} {} {} bytes, but stage {} {} {}", one,
                            verb(own), own->running->bytes, other, verb(theirs),
                            theirs->running->bytes);
  own->isWaiting = theirs->isWaiting = false;
  return Status::ok();
}

StatusOr<std::vector<Timeline>>
simulateStages(std::span<const std::vector<TimelineItem>> stages,
               QueueSharing sharing) {
  std::vector<Simulation> ranks;
  for (const std::vector<TimelineItem> &items : stages)
    ranks.emplace_back(items, std::span<TimelineSpan>(), sharing,
                       /*isAlone=*/stages.size() == 1);
  for (;;) {
    std::ranges::for_each(ranks, [](Simulation &rank) { rank.advance(); });
    for (size_t one = 0; one < ranks.size(); ++one)
      for (int places = 1; places < static_cast<int>(ranks.size()); ++places)
        QLORA_RETURN_IF_ERROR(meet(ranks, one, places));
    double next = std::numeric_limits<double>::infinity();
    for (const Simulation &rank : ranks)
      next = std::min(next, rank.untilNext());
    if (std::ranges::none_of(ranks, &Simulation::isBusy))
      break;
    if (next == std::numeric_limits<double>::infinity())
      return Status::dataLoss("deadlock: stages wait for each other");
    for (Simulation &rank : ranks)
      if (rank.isBusy())
        rank.pass(next);
  }
  std::vector<Timeline> ended;
  std::ranges::transform(ranks, std::back_inserter(ended), &Simulation::ended);
  return ended;
}

} // namespace qlora
