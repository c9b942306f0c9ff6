// SPDX-License-Identifier: MIT

// The three queues of a CUDA device as streams, and the events of an entry.
//
// Inputs and results are copied on the compute stream. The other queues of an
// entry fork from the compute stream at the entry's start and join it at the
// entry's end. So entries and transfers are in order without a wait on the
// host, and a capture of the compute stream holds the whole entry.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAQUEUES_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAQUEUES_H

#include <array>
#include <chrono>
#include <span>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Device/Cuda/CudaHandle.h"

namespace qlora {

/// Per queue: whether it has a command.
using QueueUse = std::array<bool, QLORA_QUEUE_COUNT>;
QueueUse queuesOf(std::span<const qlora_command> commands);

/// Watches the host's waits for work that may never end: a collective whose
/// other ranks are gone.
class HostWatch {
public:
  virtual ~HostWatch() = default;
  /// Called repeatedly during a wait; an error ends the wait.
  virtual Status look(std::chrono::nanoseconds waited) = 0;
  /// Called after work has ended without a GPU error. Checks for other errors.
  virtual Status confirm() = 0;
  /// Called after work failed. Returns kAborted if another rank may be the
  /// cause, else `failure`.
  virtual Status judge(Status failure) = 0;
};

class CudaQueues {
public:
  Status create(const CudaDriver &driver, size_t eventCount);

  CUstream compute() const { return streams[QLORA_QUEUE_COMPUTE].get(); }
  CUstream stream(uint8_t queue) const { return streams[queue].get(); }

  /// fork() starts an entry on its queues other than compute; join() ends it.
  Status fork(const QueueUse &use);
  Status join(const QueueUse &use);

  Status record(uint32_t event, uint8_t queue);
  Status wait(uint32_t event, uint8_t queue);
  /// Makes a queue wait for an event that belongs to no command.
  Status wait(const CudaEvent &event, uint8_t queue) {
    return wait(event, stream(queue));
  }

  /// Creates an event for waitOnHost(). record() puts the event after all work
  /// so far on the compute stream.
  StatusOr<CudaEvent> newEvent() const;
  Status record(const CudaEvent &event) { return record(event, compute()); }

  /// waitOnHost() waits for an event, synchronize() for all work so far.
  /// Without a watch the wait blocks in the driver. With a watch the host polls
  /// and sleeps, so that no wait is longer than the watch allows.
  Status waitOnHost(const CudaEvent &event) const;
  Status synchronize() const;
  /// Returns whether all work so far ends within `bound`, with or without an
  /// error. Does not call the watch.
  bool endWithin(std::chrono::nanoseconds bound) const;
  /// Sets the watch for later waits. `watch` must outlive them; null: no watch.
  void setWatch(HostWatch *watch) { hostWatch = watch; }

private:
  Status poll(const CudaEvent &event) const;
  Status record(const CudaEvent &event, CUstream stream) const;
  Status wait(const CudaEvent &event, CUstream stream);

  const CudaDriver *driver = nullptr;
  std::array<CudaStream, QLORA_QUEUE_COUNT> streams;
  std::vector<CudaEvent> events; ///< events of RECORD and WAIT commands
  CudaEvent started;
  CudaEvent reached; ///< event of synchronize() and endWithin()
  HostWatch *hostWatch = nullptr;
  std::array<CudaEvent, QLORA_QUEUE_COUNT> ended;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAQUEUES_H
