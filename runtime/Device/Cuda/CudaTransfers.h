// SPDX-License-Identifier: MIT

// Transfers between host and device memory through one pinned buffer, in the
// order of the compute stream.
//
// A write does not wait for the device: it copies the bytes into the next free
// range of the buffer, and the device copies them later. The buffer has two
// halves. When one half is full, the host waits only for earlier copies from
// the other half, and continues in that half. A read waits for the device.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDATRANSFERS_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDATRANSFERS_H

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/Device/Cuda/CudaHandle.h"
#include "runtime/Device/Cuda/CudaQueues.h"

namespace qlora {

class CudaTransfers {
public:
  /// Allocates `bufferBytes` of pinned host memory. `queues` outlives this.
  Status create(const CudaDriver &driver, CudaQueues &queues,
                uint64_t bufferBytes);

  Status write(CUdeviceptr to, std::span<const uint8_t> data);
  Status read(CUdeviceptr from, std::span<uint8_t> data);

private:
  /// Returns a range of the buffer, of at most `bytes`, that no copy uses.
  StatusOr<std::span<uint8_t>> reserve(uint64_t bytes);

  const CudaDriver *driver = nullptr;
  CudaQueues *queues = nullptr;
  CudaHostMemory buffer;
  uint64_t halfBytes = 0;
  uint64_t used = 0; ///< bytes used in the current half
  size_t half = 0;
  std::array<CudaEvent, 2> taken; ///< per half: happens after all its copies
};

// Results that the host reads later. Each result is copied to a separate place
// in pinned memory, in the order of the compute stream, followed by an event.
// So the host waits only for the result, not for work queued after it.

/// A ring of Device::kMaxStartedReads reads of at most kMaxStartedBytes each.
/// The caller must respect both limits.
class CudaReads {
public:
  /// `queues` outlives this.
  Status create(const CudaDriver &driver, CudaQueues &queues);

  Status start(CUdeviceptr from, uint64_t bytes);
  /// Waits for the oldest read that has not been finished.
  Status finish(std::span<uint8_t> data);

private:
  uint8_t *place(size_t read) const;

  const CudaDriver *driver = nullptr;
  CudaQueues *queues = nullptr;
  CudaHostMemory buffer;
  std::vector<CudaEvent> arrived; ///< per place in the ring
  size_t started = 0, finished = 0; ///< counts of reads so far
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDATRANSFERS_H
