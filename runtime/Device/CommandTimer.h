// SPDX-License-Identifier: MIT

// When each command of an entry ran, for a profile. A device has a timer only
// while it is profiled (Device::startTiming), and asks it around every command
// that it enqueues; without one a command costs what it always did.
//
// Times are nanoseconds of the host's steady clock, whatever clock the driver
// reads. A RECORD takes no time and has none. The time of a WAIT is what its
// queue waited.

#ifndef QLORA_RUNTIME_DEVICE_COMMANDTIMER_H
#define QLORA_RUNTIME_DEVICE_COMMANDTIMER_H

#include <chrono>
#include <cstdint>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// A command that has run.
struct TimedCommand {
  uint32_t command = 0;       ///< index into the module's commands
  uint32_t entry = 0;         ///< and into its entries
  uint64_t labelledRows = 0;  ///< qlora_step_block, of the entry's run
  int64_t start = 0, end = 0; ///< nanoseconds
};

inline int64_t steadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// A driver's half. Called from the device's thread, in the order of the
/// device's own calls; an error is the device's.
class CommandTimer {
public:
  virtual ~CommandTimer() = default;

  /// The entry has begun; its commands are to come.
  virtual Status begin(const LoadedModule &module, const qlora_entry &entry,
                       uint64_t labelledRows) = 0;
  /// Around the enqueueing of a command that is no RECORD.
  virtual Status before(const qlora_command &command) = 0;
  virtual Status after(const qlora_command &command) = 0;
  /// The entry has been ended without an error.
  virtual Status end() = 0;
  /// Waits for all entries and returns their commands, each queue's in the
  /// order in which it ran them.
  virtual StatusOr<std::vector<TimedCommand>> finish() = 0;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_COMMANDTIMER_H
