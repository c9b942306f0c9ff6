// SPDX-License-Identifier: MIT

// Creates streams and events, and waits for them.

#include "runtime/Device/Cuda/CudaQueues.h"

#include <algorithm>
#include <thread>

namespace qlora {

using Clock = std::chrono::steady_clock;

namespace {
/// Sleeps between polls: briefly at first, and never long compared with a step.
class BackOff {
public:
  void pause() {
    std::this_thread::sleep_for(next);
    next = std::min(2 * next, kLongest);
  }

private:
  static constexpr std::chrono::microseconds kLongest{500};
  std::chrono::microseconds next{5};
};
} // namespace

QueueUse queuesOf(std::span<const qlora_command> commands) {
  QueueUse use{};
  for (const qlora_command &command : commands)
    use[command.queue] = true;
  return use;
}

StatusOr<CudaEvent> CudaQueues::newEvent() const {
  CUevent event = nullptr;
  QLORA_RETURN_IF_ERROR(driver->check(
      driver->eventCreate(&event, kCudaEventDisableTiming), "cuEventCreate"));
  return CudaEvent(*driver, event);
}

Status CudaQueues::create(const CudaDriver &theDriver, size_t eventCount) {
  driver = &theDriver;
  for (CudaStream &stream : streams) {
    CUstream created = nullptr;
    QLORA_RETURN_IF_ERROR(
        driver->check(driver->streamCreate(&created, kCudaStreamNonBlocking),
                      "cuStreamCreate"));
    stream = CudaStream(*driver, created);
  }
  QLORA_ASSIGN_OR_RETURN(started, newEvent());
  QLORA_ASSIGN_OR_RETURN(reached, newEvent());
  for (CudaEvent &event : ended) {
    QLORA_ASSIGN_OR_RETURN(event, newEvent());
  }
  events.resize(eventCount);
  for (CudaEvent &event : events) {
    QLORA_ASSIGN_OR_RETURN(event, newEvent());
  }
  return Status::ok();
}

Status CudaQueues::record(const CudaEvent &event, CUstream stream) const {
  return driver->check(driver->eventRecord(event.get(), stream),
                       "cuEventRecord");
}

Status CudaQueues::wait(const CudaEvent &event, CUstream stream) {
  return driver->check(driver->streamWaitEvent(stream, event.get(), 0),
                       "cuStreamWaitEvent");
}

Status CudaQueues::record(uint32_t event, uint8_t queue) {
  return record(events[event], stream(queue));
}

Status CudaQueues::wait(uint32_t event, uint8_t queue) {
  return wait(events[event], stream(queue));
}

Status CudaQueues::fork(const QueueUse &use) {
  bool isRecorded = false;
  for (uint8_t queue = 0; queue < QLORA_QUEUE_COUNT; ++queue) {
    if (!use[queue] || queue == QLORA_QUEUE_COMPUTE)
      continue;
    if (!isRecorded)
      QLORA_RETURN_IF_ERROR(record(started, compute()));
    isRecorded = true;
    QLORA_RETURN_IF_ERROR(wait(started, stream(queue)));
  }
  return Status::ok();
}

Status CudaQueues::join(const QueueUse &use) {
  for (uint8_t queue = 0; queue < QLORA_QUEUE_COUNT; ++queue) {
    if (!use[queue] || queue == QLORA_QUEUE_COMPUTE)
      continue;
    QLORA_RETURN_IF_ERROR(record(ended[queue], stream(queue)));
    QLORA_RETURN_IF_ERROR(wait(ended[queue], compute()));
  }
  return Status::ok();
}

/// Adds context to an error of a wait: the driver returns errors of GPU work at
/// a later call of the host.
static Status explain(const Status &status) {
  return status.withContext(
      "an earlier command failed on the GPU (find it with --cuda-graphs false "
      "and CUDA_LAUNCH_BLOCKING=1)");
}

Status CudaQueues::poll(const CudaEvent &event) const {
  const Clock::time_point start = Clock::now();
  for (BackOff backOff;; backOff.pause()) {
    const CUresult result = driver->eventQuery(event.get());
    if (result == 0)
      return hostWatch->confirm();
    if (result != kCudaNotReady)
      return hostWatch->judge(explain(driver->check(result, "cuEventQuery")));
    QLORA_RETURN_IF_ERROR(hostWatch->look(Clock::now() - start));
  }
}

Status CudaQueues::waitOnHost(const CudaEvent &event) const {
  if (hostWatch)
    return poll(event);
  return explain(driver->check(driver->eventSynchronize(event.get()),
                               "cuEventSynchronize"));
}

Status CudaQueues::synchronize() const {
  if (!hostWatch)
    return explain(driver->check(driver->streamSynchronize(compute()),
                                 "cuStreamSynchronize"));
  QLORA_RETURN_IF_ERROR(record(reached, compute()));
  return poll(reached);
}

bool CudaQueues::endWithin(std::chrono::nanoseconds bound) const {
  const Clock::time_point start = Clock::now();
  if (!record(reached, compute()).isOk())
    return true; // after an error, the GPU runs nothing more
  for (BackOff backOff; driver->eventQuery(reached.get()) == kCudaNotReady;
       backOff.pause())
    if (Clock::now() - start > bound)
      return false;
  return true;
}

} // namespace qlora
