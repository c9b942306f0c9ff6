// SPDX-License-Identifier: MIT

// The three queues of a CUDA device as streams, and the events of an entry.
//
// The compute stream is the one that the host talks to: inputs arrive and
// results leave on it. An entry that uses another queue branches off it at
// its start and joins it at its end, so that entries and transfers are in
// order without a wait on the host, and so that a capture of the compute
// stream holds the whole entry.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAQUEUES_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAQUEUES_H

#include <array>
#include <chrono>
#include <span>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Device/Cuda/CudaHandle.h"

namespace qlora {

/// Which queues have a command.
using QueueUse = std::array<bool, QLORA_QUEUE_COUNT>;
QueueUse queuesOf(std::span<const qlora_command> commands);

/// Looks after work that the host waits for and that may never end by itself:
/// a collective whose other ranks are gone.
class HostWatch {
public:
  virtual ~HostWatch() = default;
  /// Called again and again while a wait lasts; an error ends the wait.
  virtual Status look(std::chrono::nanoseconds waited) = 0;
  /// The work has ended without an error of the card: whether its results
  /// hold.
  virtual Status confirm() = 0;
  /// The work has failed: the error to report, which may be of another rank.
  virtual Status judge(Status failure) = 0;
};

class CudaQueues {
public:
  Status create(const CudaDriver &driver, size_t eventCount);

  CUstream compute() const { return streams[QLORA_QUEUE_COMPUTE].get(); }
  CUstream stream(uint8_t queue) const { return streams[queue].get(); }

  /// Start and end of an entry for its queues other than compute.
  Status fork(const QueueUse &use);
  Status join(const QueueUse &use);

  Status record(uint32_t event, uint8_t queue);
  Status wait(uint32_t event, uint8_t queue);
  /// A queue waits for an event that is not of commands.
  Status wait(const CudaEvent &event, uint8_t queue) {
    return wait(event, stream(queue));
  }

  /// An event that the host can wait for: record() puts it behind all work of
  /// the compute stream so far.
  StatusOr<CudaEvent> newEvent() const;
  Status record(const CudaEvent &event) { return record(event, compute()); }

  /// The host waits for an event, or for all work up to now: blocked in the
  /// driver, or, where there is a watch, by asking and sleeping in turns, so
  /// that no wait is longer than the watch allows.
  Status waitOnHost(const CudaEvent &event) const;
  Status synchronize() const;
  /// Whether all work up to now ends in that time, with or without an error.
  /// Asks no watch.
  bool endWithin(std::chrono::nanoseconds bound) const;
  /// `watch` outlives the waits; null: none.
  void setWatch(HostWatch *watch) { hostWatch = watch; }

private:
  Status poll(const CudaEvent &event) const;
  Status record(const CudaEvent &event, CUstream stream) const;
  Status wait(const CudaEvent &event, CUstream stream);

  const CudaDriver *driver = nullptr;
  std::array<CudaStream, QLORA_QUEUE_COUNT> streams;
  std::vector<CudaEvent> events; ///< of commands
  CudaEvent started;
  CudaEvent reached; ///< what the host waits for
  HostWatch *hostWatch = nullptr;
  std::array<CudaEvent, QLORA_QUEUE_COUNT> ended;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAQUEUES_H
