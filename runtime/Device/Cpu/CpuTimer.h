// SPDX-License-Identifier: MIT

// Times of the commands of a CPU rank.

#ifndef QLORA_RUNTIME_DEVICE_CPU_CPUTIMER_H
#define QLORA_RUNTIME_DEVICE_CPU_CPUTIMER_H

#include <vector>

#include "runtime/Device/CommandTimer.h"
#include "runtime/Device/Cpu/CommunicationQueue.h"

namespace qlora {

/// The compute thread times the commands that
/// enqueue() runs; the communication queue's thread times its own commands.
class CpuTimer final : public CommandTimer {
public:
  /// `communication` outlives this.
  explicit CpuTimer(CommunicationQueue &communication);

  Status begin(const LoadedModule &module, const qlora_entry &entry,
               uint64_t labelledRows) override;
  Status before(const qlora_command &command) override;
  Status after(const qlora_command &command) override;
  Status end() override;
  StatusOr<std::vector<TimedCommand>> finish() override;

private:
  /// Returns the command's TimedCommand, with start and end still 0.
  TimedCommand describe(const qlora_command &command) const;

  CommunicationQueue &communication;
  const LoadedModule *module = nullptr;
  TimedCommand ofEntry; ///< has only the current entry and its labelled rows
  std::vector<TimedCommand> timed;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CPU_CPUTIMER_H
