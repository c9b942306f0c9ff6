// SPDX-License-Identifier: MIT

// Work that was put on streams and has not run yet. An operation runs after
// those it depends on: its stream's one before, and the events waited for.
// Nothing runs by itself: the calls that wait (a synchronisation, a query) run
// what is ready, in an order from the seed, until what they wait for is done;
// and some calls that do not wait run an operation too, so that early is tried
// as well as late.
//
// The order: every stream has a random priority, drawn again now and then; the
// ready operation of the highest runs. So one stream may be far ahead of or
// far behind another, and a missing wait shows under some seed.
//
// An operation may also wait for another process (MayRun): it is passed over
// until that is there. A card goes on while its host does something else, which
// another process may depend on; so, while there is such an operation, a thread
// runs what is ready whenever the host has not called for a while.
//
// The clock of events is simulated, so that what they measure is the same in
// every run: an operation takes a microsecond, and a library's what it says
// (Hook.h). Operations take their turns on it, also those of two streams.
//
// After an operation fails, what is left is dropped and every later call
// returns its code, as a CUDA context does.

#ifndef QLORA_TESTS_CUDA_DRIVER_SCHEDULE_H
#define QLORA_TESTS_CUDA_DRIVER_SCHEDULE_H

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace qlora::platform {

/// Does the work; a CUresult.
using Work = std::function<int()>;
/// Asked again and again once all dependencies are done; empty: it may.
using MayRun = std::function<bool()>;

struct Operation {
  std::string what;
  Work work;
  MayRun mayRun;
  uint64_t priority = 0;
  uint64_t number = 0; ///< in the order of the calls
  size_t unmet = 0;    ///< dependencies that have not run
  bool isDone = false;
  std::chrono::nanoseconds doneAt = {}; ///< by the clock of events
  std::vector<std::shared_ptr<Operation>> followers;
};
using OperationRef = std::shared_ptr<Operation>;

/// Adds an operation; dependencies may be null or done.
OperationRef schedule(std::string what, uint64_t priority,
                      std::span<const OperationRef> dependencies, Work work,
                      MayRun mayRun = {});

/// Runs a ready operation now and then.
void runSome();
/// Runs until it is done; null is done.
void runUntil(const OperationRef &operation);
void runAll();
/// Runs one ready operation, if there is one that may run.
bool runOne();
/// Whether any has not run.
bool hasWork();

/// What a failed operation left, or 0.
int stickyCode();
void setStickyCode(int code);

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_SCHEDULE_H
