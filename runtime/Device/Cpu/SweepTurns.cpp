// SPDX-License-Identifier: MIT

// Chooses the next run, and runs entries interleaved.

#include "runtime/Device/Cpu/SweepTurns.h"

#include <malloc.h>

#include "runtime/Base/Exceptions.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora {

/// Returns the next ready run after `from`, cyclically; kEntries if none is.
size_t SweepTurns::nextReady(size_t from) const {
  for (size_t i = 1; i <= runs.size(); ++i)
    if (const size_t run = (from + i) % runs.size();
        runs[run].state == State::kReady)
      return run;
  return kEntries;
}

/// Returns the waiting run that has run the fewest entries; null if none waits.
SweepTurns::Run *SweepTurns::leastAdvanced() {
  Run *least = nullptr;
  for (Run &run : runs)
    if (run.state == State::kWaiting &&
        (!least || run.entries < least->entries))
      least = &run;
  return least;
}

/// Gives the turn to the next ready run after `from`, which has just stopped.
void SweepTurns::handOver(size_t from) {
  turn = nextReady(from);
  turned.notify_all();
}

void SweepTurns::begin(size_t run) {
  Lock lock(mutex);
  wait(lock, run);
}

Status SweepTurns::run(size_t number, SweepEntry &entry) {
  // End the OpenMP threads of this run's thread. The entry runs on the threads
  // of the thread that calls runEntries().
  releaseThreads();
  Lock lock(mutex);
  Run &run = runs[number];
  if (run.entries == 0)
    malloc_trim(0); // return memory that was freed after startup to the system
  run.state = State::kWaiting;
  run.entry = &entry;
  handOver(number);
  wait(lock, number);
  return run.status;
}

void SweepTurns::runEntries() {
  Lock lock(mutex);
  for (;;) {
    wait(lock, kEntries);
    Run *const first = leastAdvanced();
    if (!first)
      return;
    lock.unlock(); // all other threads wait for a turn
    runTogether(*first);
    lock.lock();
    handOver(runs.size() - 1);
  }
}

/// Runs the entry of `first` and all waiting entries that have its order().
void SweepTurns::runTogether(Run &first) {
  group.clear();
  for (Run &run : runs)
    if (run.state == State::kWaiting &&
        run.entry->order() == first.entry->order())
      group.push_back(&run);
  for (Run *run : group)
    run->isDone = false;
  const ScopedThreads threads(first.entry->loopThreads());
  const Status status =
      endExceptions("an entry", [this] { return runGroup(); });
  for (Run *run : group) {
    if (!status.isOk() && !run->isDone)
      run->status = status;
    run->state = State::kReady;
    ++run->entries;
  }
}

/// Continues the entry of `run` up to its next shared matmul or its end.
void SweepTurns::advance(Run &run) {
  const auto product =
      endExceptions("an entry", [&run] { return run.entry->advance(); });
  run.status = product.status();
  run.isDone = !product.isOk() || !product.value().kernel;
  if (!run.isDone)
    products.push_back(product.value());
}

/// Runs the group's entries to their ends. If one fails, the others continue.
Status SweepTurns::runGroup() {
  for (;;) {
    products.clear();
    for (Run *run : group)
      if (!run->isDone)
        advance(*run);
    if (products.empty())
      return Status::ok();
    QLORA_RETURN_IF_ERROR(products[0].kernel->runTogether(products));
  }
}

void SweepTurns::leave(size_t run) {
  Lock lock(mutex);
  runs[run].state = State::kGone;
  handOver(run);
}

} // namespace qlora
