// SPDX-License-Identifier: MIT

// Who is next, and entries side by side.

#include "runtime/Device/Cpu/SweepTurns.h"

#include <malloc.h>

namespace qlora {

/// In a circle behind `from`.
size_t SweepTurns::nextReady(size_t from) const {
  for (size_t i = 1; i <= runs.size(); ++i)
    if (const size_t run = (from + i) % runs.size();
        runs[run].state == State::kReady)
      return run;
  return kNobody;
}

/// Of those that wait, the first that has run the fewest entries.
size_t SweepTurns::leastAdvanced() const {
  size_t least = kNobody;
  for (size_t i = 0; i < runs.size(); ++i)
    if (runs[i].state == State::kWaiting &&
        (least == kNobody || runs[i].entries < runs[least].entries))
      least = i;
  return least;
}

/// Gives the turn to whoever can go on; `from` has just stopped. A run that
/// gets it while it waits runs its group.
void SweepTurns::handOver(size_t from) {
  turn = nextReady(from);
  if (turn == kNobody)
    turn = leastAdvanced();
  turned.notify_all();
}

void SweepTurns::begin(size_t run) {
  Lock lock(mutex);
  wait(lock, run);
}

Status SweepTurns::run(size_t number, SweepEntry &entry) {
  Lock lock(mutex);
  Run &run = runs[number];
  if (run.entries == 0)
    malloc_trim(0); // of what it needed to start
  run.state = State::kWaiting;
  run.entry = &entry;
  handOver(number);
  wait(lock, number);
  if (run.state == State::kReady) // somebody has run it
    return run.status;
  group.clear();
  for (Run &other : runs)
    if (other.state == State::kWaiting &&
        other.entry->order() == entry.order())
      group.push_back(&other);
  lock.unlock(); // all others wait for a turn
  runGroup();
  lock.lock();
  for (Run *other : group) {
    other->state = State::kReady;
    ++other->entries;
  }
  return run.status;
}

/// To its next product, or to its end.
void SweepTurns::advance(Run &run) {
  const auto product = run.entry->advance();
  run.status = product.status();
  run.isDone = !product.isOk() || !product.value().kernel;
  if (!run.isDone)
    products.push_back(product.value());
}

/// One that fails is done, and the others go on.
void SweepTurns::runGroup() {
  for (Run *run : group)
    run->isDone = false;
  for (;;) {
    products.clear();
    for (Run *run : group)
      if (!run->isDone)
        advance(*run);
    if (products.empty())
      return;
    const Status status = products[0].kernel->runTogether(products);
    for (Run *run : group)
      if (!status.isOk() && !run->isDone) {
        run->status = status;
        run->isDone = true;
      }
  }
}

void SweepTurns::leave(size_t run) {
  Lock lock(mutex);
  runs[run].state = State::kGone;
  handOver(run);
}

} // namespace qlora
