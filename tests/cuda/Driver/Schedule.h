// SPDX-License-Identifier: MIT

// Work that was put on streams and has not run yet. An operation runs after its
// dependencies: the stream's previous operation and the awaited events. Calls
// that wait (a synchronisation, a query) run ready operations until their
// condition is met. The seed determines the order. Some calls that do not wait
// also run an operation, so that tests cover early and late execution.
//
// Every stream has a random priority, which changes now and then. The ready
// operation with the highest priority runs. One stream may be far ahead of
// another, so a missing wait causes a wrong result under some seed.
//
// An operation may also wait for another process (MayRun): it is skipped until
// that process is ready. Other processes may depend on a GPU that works while
// its host does something else. So, while an operation waits for a process, a
// thread runs ready operations if the host has not called for a while.
//
// The clock of events is simulated, so that measured times are equal in every
// run. An operation takes a microsecond, or the time that a library sets
// (Hook.h). Operations never overlap on this clock, even on different streams.
//
// After an operation fails, remaining work is dropped and every later call
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

/// Runs the operation; returns a CUresult.
using Work = std::function<int()>;
/// Returns whether an operation may run; called repeatedly after all its
/// dependencies are done. Empty if it may always run.
using MayRun = std::function<bool()>;

struct Operation {
  std::string what;
  Work work;
  MayRun mayRun;
  uint64_t priority = 0;
  uint64_t number = 0; ///< index in the order of the calls
  size_t unmet = 0;    ///< dependencies that have not run
  bool isDone = false;
  std::chrono::nanoseconds doneAt = {}; ///< end on the clock of events
  std::vector<std::shared_ptr<Operation>> followers;
};
using OperationRef = std::shared_ptr<Operation>;

/// Adds an operation; dependencies may be null or done.
OperationRef schedule(std::string what, uint64_t priority,
                      std::span<const OperationRef> dependencies, Work work,
                      MayRun mayRun = {});

/// Runs a few ready operations at random. Thus work runs early under some
/// seeds.
void runSome();
/// Runs operations until `operation` is done; null counts as done.
void runUntil(const OperationRef &operation);
void runAll();
/// Runs one ready operation. Returns false if none may run.
bool runOne();
/// Returns whether any operation has not run.
bool hasWork();

/// Returns the error code of the operation that failed first, or 0.
int stickyCode();
void setStickyCode(int code);

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_SCHEDULE_H
