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
#include <span>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Device/Cuda/CudaHandle.h"

namespace qlora {

/// Which queues have a command.
using QueueUse = std::array<bool, QLORA_QUEUE_COUNT>;
QueueUse queuesOf(std::span<const qlora_command> commands);

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

  /// An event that the host can wait for: record() puts it behind all work of
  /// the compute stream so far.
  StatusOr<CudaEvent> newEvent() const;
  Status record(const CudaEvent &event) { return record(event, compute()); }
  Status waitOnHost(const CudaEvent &event) const;

  /// The host waits for all work up to now.
  Status synchronize() const;

private:
  Status record(const CudaEvent &event, CUstream stream);
  Status wait(const CudaEvent &event, CUstream stream);

  const CudaDriver *driver = nullptr;
  std::array<CudaStream, QLORA_QUEUE_COUNT> streams;
  std::vector<CudaEvent> events; ///< of commands
  CudaEvent started;
  std::array<CudaEvent, QLORA_QUEUE_COUNT> ended;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAQUEUES_H
