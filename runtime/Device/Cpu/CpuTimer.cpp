// SPDX-License-Identifier: MIT

// Times commands with the steady clock.

#include "runtime/Device/Cpu/CpuTimer.h"

#include <algorithm>
#include <utility>

namespace qlora {

CpuTimer::CpuTimer(CommunicationQueue &communication)
    : communication(communication) {
  communication.keepTimes(true);
}

Status CpuTimer::begin(const LoadedModule &ofDevice, const qlora_entry &entry,
                       uint64_t labelledRows) {
  module = &ofDevice;
  ofEntry.entry = static_cast<uint32_t>(&entry - module->entries().data());
  ofEntry.labelledRows = labelledRows;
  // Reserve memory here, because commands of an entry must not allocate.
  const size_t needed = timed.size() + entry.command_count;
  if (needed > timed.capacity())
    timed.reserve(std::max(needed, 2 * timed.capacity()));
  return Status::ok();
}

TimedCommand CpuTimer::describe(const qlora_command &command) const {
  TimedCommand described = ofEntry;
  described.command =
      static_cast<uint32_t>(&command - module->commands().data());
  return described;
}

Status CpuTimer::before(const qlora_command &command) {
  if (command.queue == QLORA_QUEUE_COMMUNICATION)
    return Status::ok();
  timed.push_back(describe(command));
  timed.back().start = steadyNanoseconds();
  return Status::ok();
}

Status CpuTimer::after(const qlora_command &command) {
  if (command.queue != QLORA_QUEUE_COMMUNICATION)
    timed.back().end = steadyNanoseconds();
  return Status::ok();
}

Status CpuTimer::end() {
  for (const CommunicationQueue::Times &times : communication.times()) {
    if (times.command->kind == QLORA_COMMAND_RECORD)
      continue;
    timed.push_back(describe(*times.command));
    timed.back().start = times.start;
    timed.back().end = times.end;
  }
  return Status::ok();
}

StatusOr<std::vector<TimedCommand>> CpuTimer::finish() {
  communication.keepTimes(false);
  return std::move(timed);
}

} // namespace qlora
