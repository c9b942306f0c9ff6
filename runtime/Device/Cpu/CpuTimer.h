// SPDX-License-Identifier: MIT

// Times of the commands of a CPU rank: what runs while enqueue() does is timed
// there, what the communication queue runs by its own thread.

#ifndef QLORA_RUNTIME_DEVICE_CPU_CPUTIMER_H
#define QLORA_RUNTIME_DEVICE_CPU_CPUTIMER_H

#include "runtime/Device/CommandTimer.h"
#include "runtime/Device/Cpu/CommunicationQueue.h"

namespace qlora {

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
  /// Without times.
  TimedCommand describe(const qlora_command &command) const;

  CommunicationQueue &communication;
  const LoadedModule *module = nullptr;
  TimedCommand ofEntry; ///< its entry and rows
  std::vector<TimedCommand> timed;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CPU_CPUTIMER_H
