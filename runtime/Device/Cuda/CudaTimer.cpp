// SPDX-License-Identifier: MIT

// Records events around commands and reads them two entries later.

#include "runtime/Device/Cuda/CudaTimer.h"

#include <utility>

namespace qlora {

StatusOr<CudaEvent> CudaTimer::newTimedEvent() const {
  CUevent event = nullptr;
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.eventCreate(&event, 0), "cuEventCreate"));
  return CudaEvent(driver, event);
}

Status CudaTimer::record(const CudaEvent &event, uint8_t queue) const {
  return driver.check(driver.eventRecord(event.get(), queues.stream(queue)),
                      "cuEventRecord");
}

/// Returns the time between two events. The driver returns milliseconds as a
/// float, which resolves microseconds only for a few seconds: callers must sum
/// long times from short ones.
StatusOr<double> CudaTimer::nanosecondsBetween(const CudaEvent &from,
                                               const CudaEvent &to) const {
  float milliseconds = 0;
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.eventElapsedTime(&milliseconds, from.get(), to.get()),
                   "cuEventElapsedTime"));
  return static_cast<double>(milliseconds) * 1e6;
}

StatusOr<std::unique_ptr<CommandTimer>>
CudaTimer::create(const CudaDriver &driver, CudaQueues &queues) {
  std::unique_ptr<CudaTimer> timer(new CudaTimer(driver, queues));
  QLORA_RETURN_IF_ERROR(timer->createEvents());
  return std::unique_ptr<CommandTimer>(std::move(timer));
}

Status CudaTimer::createEvents() {
  for (Run &run : runs) {
    QLORA_ASSIGN_OR_RETURN(run.origin, newTimedEvent());
    QLORA_ASSIGN_OR_RETURN(run.done, newTimedEvent());
  }
  QLORA_ASSIGN_OR_RETURN(lastOrigin, newTimedEvent());
  QLORA_RETURN_IF_ERROR(queues.synchronize());
  QLORA_RETURN_IF_ERROR(record(lastOrigin, QLORA_QUEUE_COMPUTE));
  QLORA_RETURN_IF_ERROR(queues.synchronize());
  lastOriginTime = static_cast<double>(steadyNanoseconds());
  return Status::ok();
}

Status CudaTimer::begin(const LoadedModule &ofDevice, const qlora_entry &entry,
                        uint64_t labelledRows) {
  module = &ofDevice;
  current = 1 - current;
  Run &run = runs[current];
  QLORA_RETURN_IF_ERROR(collect(run));
  TimedCommand described;
  described.entry = static_cast<uint32_t>(&entry - module->entries().data());
  described.labelledRows = labelledRows;
  for (const qlora_command &command : module->commands(entry)) {
    described.command =
        static_cast<uint32_t>(&command - module->commands().data());
    if (command.kind != QLORA_COMMAND_RECORD)
      run.commands.push_back(described);
  }
  while (run.events.size() < 2 * run.commands.size()) {
    QLORA_ASSIGN_OR_RETURN(run.events.emplace_back(), newTimedEvent());
  }
  run.next = 0;
  run.lastKernel = nullptr;
  return record(run.origin, QLORA_QUEUE_COMPUTE);
}

/// Whether the command uses multiprocessors and never waits for other ranks.
static bool isKernel(const qlora_command &command) {
  return command.kind == QLORA_COMMAND_LAUNCH ||
         command.kind == QLORA_COMMAND_FILL;
}

/// Makes the command's stream wait for the last kernel on another stream. Work
/// on one stream is in order anyway.
Status CudaTimer::waitForLastKernel(const qlora_command &command) {
  const Run &run = runs[current];
  if (!run.lastKernel || run.queueOfLast == command.queue)
    return Status::ok();
  return queues.wait(*run.lastKernel, command.queue);
}

Status CudaTimer::before(const qlora_command &command) {
  Run &run = runs[current];
  if (isKernel(command))
    QLORA_RETURN_IF_ERROR(waitForLastKernel(command));
  return record(run.events[run.next++], command.queue);
}

Status CudaTimer::after(const qlora_command &command) {
  Run &run = runs[current];
  const CudaEvent &event = run.events[run.next++];
  if (isKernel(command)) {
    run.lastKernel = &event;
    run.queueOfLast = command.queue;
  }
  return record(event, command.queue);
}

Status CudaTimer::end() {
  runs[current].isOpen = true;
  return record(runs[current].done, QLORA_QUEUE_COMPUTE);
}

Status CudaTimer::collect(Run &run) {
  if (!run.isOpen)
    return Status::ok();
  run.isOpen = false;
  QLORA_RETURN_IF_ERROR(queues.waitOnHost(run.done));
  QLORA_ASSIGN_OR_RETURN(const double passed,
                         nanosecondsBetween(lastOrigin, run.origin));
  lastOriginTime += passed;
  std::swap(lastOrigin, run.origin);
  for (size_t i = 0; i < run.commands.size(); ++i) {
    QLORA_ASSIGN_OR_RETURN(const double start,
                           nanosecondsBetween(lastOrigin, run.events[2 * i]));
    QLORA_ASSIGN_OR_RETURN(
        const double end,
        nanosecondsBetween(lastOrigin, run.events[2 * i + 1]));
    TimedCommand &command = timed.emplace_back(run.commands[i]);
    command.start = static_cast<int64_t>(lastOriginTime + start);
    command.end = static_cast<int64_t>(lastOriginTime + end);
  }
  run.commands.clear();
  return Status::ok();
}

StatusOr<std::vector<TimedCommand>> CudaTimer::finish() {
  QLORA_RETURN_IF_ERROR(collect(runs[1 - current]));
  QLORA_RETURN_IF_ERROR(collect(runs[current]));
  return std::move(timed);
}

} // namespace qlora
