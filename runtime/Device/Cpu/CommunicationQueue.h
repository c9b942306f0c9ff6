// SPDX-License-Identifier: MIT

// The communication queue of a CPU rank: one thread that runs its commands
// in order while the compute queue goes on, because collectives block.
//
// Ownership: the caller's thread calls every public method; the queue's
// thread calls `run` only. All that both touch is behind one mutex. Nothing
// between begin() and finish() allocates.

#ifndef QLORA_RUNTIME_DEVICE_CPU_COMMUNICATIONQUEUE_H
#define QLORA_RUNTIME_DEVICE_CPU_COMMUNICATIONQUEUE_H

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Base/Status.h"

namespace qlora {

class CommunicationQueue {
public:
  /// `run` executes one command that is neither RECORD nor WAIT. There are
  /// never more than `maxCommands` and `maxEvents` in an entry.
  CommunicationQueue(std::function<Status(const qlora_command &)> run,
                     size_t maxCommands, size_t maxEvents);
  /// Ends the thread; commands that have not started are dropped.
  ~CommunicationQueue();

  /// A new entry: no event has happened. The queue is idle.
  void begin();
  /// Puts a command, which outlives the entry, on the queue.
  void push(const qlora_command &command);
  /// For the compute queue: an event happens; wait until one has. Where the queue
  /// has failed before it, its error: what was to be waited for is not there.
  void record(uint32_t event);
  Status wait(uint32_t event);
  /// Waits until the queue is idle. After an error (its first is returned)
  /// or cancel() the commands that follow are skipped.
  Status finish();
  /// Makes the queue skip what has not started, for good.
  void cancel();

  /// When a command of the queue ran, in nanoseconds of the steady clock.
  struct Times {
    const qlora_command *command = nullptr;
    int64_t start = 0, end = 0;
  };
  /// Whether the times of the entries to come are kept. Between entries only.
  void keepTimes(bool keep);
  /// Of the entry that has ended, in order. Between entries only.
  std::span<const Times> times() const {
    return std::span(timesOfEntry).first(done);
  }

private:
  void loop();
  void execute(const qlora_command &command,
               std::unique_lock<std::mutex> &lock);

  const std::function<Status(const qlora_command &)> run;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<const qlora_command *> commands; ///< of this entry
  size_t pushed = 0;
  size_t done = 0;
  std::vector<Times> timesOfEntry; ///< per command; empty: not kept
  std::vector<uint8_t> happened;   ///< per event
  Status failure;
  bool skipping = false;
  bool ending = false;
  std::thread thread; ///< last: it uses all of the above
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CPU_COMMUNICATIONQUEUE_H
