// SPDX-License-Identifier: MIT

// Streams and events.

#include "runtime/Device/Cuda/CudaQueues.h"

namespace qlora {

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
  for (CudaEvent &event : ended) {
    QLORA_ASSIGN_OR_RETURN(event, newEvent());
  }
  events.resize(eventCount);
  for (CudaEvent &event : events) {
    QLORA_ASSIGN_OR_RETURN(event, newEvent());
  }
  return Status::ok();
}

Status CudaQueues::record(const CudaEvent &event, CUstream stream) {
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

/// Work fails where the host next looks, whatever the host then asked for.
static Status explain(const Status &status) {
  return status.withContext(
      "a command before this failed on the GPU (--cuda-graphs false with "
      "CUDA_LAUNCH_BLOCKING=1 in the environment shows which)");
}

Status CudaQueues::waitOnHost(const CudaEvent &event) const {
  return explain(driver->check(driver->eventSynchronize(event.get()),
                               "cuEventSynchronize"));
}

Status CudaQueues::synchronize() const {
  return explain(driver->check(driver->streamSynchronize(compute()),
                               "cuStreamSynchronize"));
}

} // namespace qlora
