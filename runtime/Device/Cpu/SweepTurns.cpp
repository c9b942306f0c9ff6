// SPDX-License-Identifier: MIT

// Who is next.

#include "runtime/Device/Cpu/SweepTurns.h"

namespace qlora {

/// The first run in a state, in a circle behind `from`, which comes last.
size_t SweepTurns::next(State state, size_t from) const {
  for (size_t i = 1; i <= runs.size(); ++i)
    if (const size_t run = (from + i) % runs.size(); runs[run].state == state)
      return run;
  return kNobody;
}

/// Of those that wait to enter, the first that has begun the fewest entries.
size_t SweepTurns::leastAdvanced() const {
  size_t least = kNobody;
  for (size_t i = 0; i < runs.size(); ++i)
    if (runs[i].state == State::kEntering &&
        (least == kNobody || runs[i].entries < runs[least].entries))
      least = i;
  return least;
}

/// Gives the turn to whoever can go on; `from` has just stopped.
void SweepTurns::handOver(size_t from) {
  turn = next(State::kReady, from);
  if (turn == kNobody) {
    // All that have begun these entries are at one product. It stays with the
    // run that came last: its thread is awake.
    turn = runs[from].state == State::kMultiplying
               ? from
               : next(State::kMultiplying, from);
    productsAreDue = turn != kNobody;
  }
  if (turn == kNobody) {
    turn = leastAdvanced();
    for (Run &run : runs)
      if (run.state == State::kEntering && *run.order == *runs[turn].order)
        run.state = State::kReady;
  }
  turned.notify_all();
}

/// Without the lock: all others wait for a turn.
void SweepTurns::makeProducts(Lock &lock) {
  productsAreDue = false;
  together.clear();
  for (const Run &run : runs)
    if (run.state == State::kMultiplying)
      together.push_back(run.product);
  lock.unlock();
  const Status status = together.front().kernel->runTogether(together);
  lock.lock();
  for (Run &run : runs)
    if (run.state == State::kMultiplying) {
      run.state = State::kReady;
      run.status = status;
    }
}

void SweepTurns::begin(size_t run) {
  Lock lock(mutex);
  wait(lock, run);
}

void SweepTurns::enter(size_t run, const std::string &order) {
  Lock lock(mutex);
  runs[run].state = State::kEntering;
  runs[run].order = &order;
  handOver(run);
  wait(lock, run);
  ++runs[run].entries;
}

Status SweepTurns::multiply(size_t run, LibraryKernel &kernel,
                            const LibraryKernelArgs &args) {
  Lock lock(mutex);
  runs[run].state = State::kMultiplying;
  runs[run].product = {&kernel, &args};
  handOver(run);
  wait(lock, run);
  if (productsAreDue)
    makeProducts(lock);
  return runs[run].status;
}

void SweepTurns::leave(size_t run) {
  Lock lock(mutex);
  runs[run].state = State::kGone;
  handOver(run);
}

} // namespace qlora
