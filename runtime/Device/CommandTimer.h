// SPDX-License-Identifier: MIT

// Measures when each command of an entry ran, for a profile. A device has a
// timer only while it is profiled (Device::startTiming), and calls it around
// every command that it enqueues. Unprofiled commands have no overhead.
//
// Times are nanoseconds of the host's steady clock, whatever clock the driver
// reads. RECORD commands take no time and are not timed. The time of a WAIT is
// how long its queue waited.

#ifndef QLORA_RUNTIME_DEVICE_COMMANDTIMER_H
#define QLORA_RUNTIME_DEVICE_COMMANDTIMER_H

#include <chrono>
#include <cstdint>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

struct TimedCommand {
  uint32_t command = 0;       ///< index into the module's commands
  uint32_t entry = 0;         ///< index into the module's entries
  uint64_t labelledRows = 0;  ///< qlora_step_block::labelled_rows of the run
  int64_t start = 0, end = 0; ///< nanoseconds
};

inline int64_t steadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The interface that a driver implements. Called from the device's thread, in
/// the order of the device's calls. The device returns errors of its timer.
class CommandTimer {
public:
  virtual ~CommandTimer() = default;

  /// Called after the entry has begun and before its commands.
  virtual Status begin(const LoadedModule &module, const qlora_entry &entry,
                       uint64_t labelledRows) = 0;
  /// Called before and after every command except RECORD is enqueued.
  virtual Status before(const qlora_command &command) = 0;
  virtual Status after(const qlora_command &command) = 0;
  /// Called after the entry has ended without an error.
  virtual Status end() = 0;
  /// Waits for all entries and returns their commands, in order per queue.
  virtual StatusOr<std::vector<TimedCommand>> finish() = 0;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_COMMANDTIMER_H
