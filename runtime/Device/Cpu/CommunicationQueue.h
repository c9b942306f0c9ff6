// SPDX-License-Identifier: MIT

// The communication queue of a CPU rank: one thread that runs its commands
// in order while the compute queue continues, because collectives block.
//
// Threads: the caller's thread calls every public method; the queue's thread
// only calls `run`. One mutex guards all shared state. Nothing between begin()
// and finish() allocates.

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
  /// `run` executes one command that is neither RECORD nor WAIT. An entry has
  /// at most `maxCommands` commands and `maxEvents` events.
  CommunicationQueue(std::function<Status(const qlora_command &)> run,
                     size_t maxCommands, size_t maxEvents);
  /// Ends the thread; commands that have not started are dropped.
  ~CommunicationQueue();

  /// Starts a new entry and resets all events. The queue must be idle.
  void begin();
  /// Puts a command on the queue. The command must outlive the entry.
  void push(const qlora_command &command);
  /// Record an event, or wait for one, for the compute queue. wait() returns
  /// the queue's error if the queue failed before the event.
  void record(uint32_t event);
  Status wait(uint32_t event);
  /// Waits until the queue is idle and returns its first error. After an error
  /// or cancel() the queue skips all further commands.
  Status finish();
  /// Makes the queue skip commands that have not started, permanently.
  void cancel();

  /// The time of a command, in nanoseconds of the steady clock.
  struct Times {
    const qlora_command *command = nullptr;
    int64_t start = 0, end = 0;
  };
  /// Enables or disables times of later entries. Call only between entries.
  void keepTimes(bool keep);
  /// Returns times of the previous entry's commands. Call only between entries.
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
  std::vector<const qlora_command *> commands; ///< current entry
  size_t pushed = 0;
  size_t done = 0;
  std::vector<Times> timesOfEntry; ///< per command; empty: times are disabled
  std::vector<uint8_t> happened;   ///< per event
  Status failure;
  bool skipping = false;
  bool ending = false;
  std::thread thread; ///< last member: it uses all of the above
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CPU_COMMUNICATIONQUEUE_H
