// SPDX-License-Identifier: MIT

// Bytes between the host and device memory, in the order of the compute
// stream, through one pinned buffer.
//
// Writing does not wait: the bytes are copied into the next free part of the
// buffer, and the device takes them when it gets there. The buffer has two
// halves; when one is full the host goes on with the other, and waits for the
// device only as far as that half was used. Reading waits by its nature.

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
  /// `bufferBytes` of pinned host memory. `queues` outlives this.
  Status create(const CudaDriver &driver, CudaQueues &queues,
                uint64_t bufferBytes);

  Status write(CUdeviceptr to, std::span<const uint8_t> data);
  Status read(CUdeviceptr from, std::span<uint8_t> data);

private:
  /// Up to `bytes` of the buffer that no copy uses.
  StatusOr<std::span<uint8_t>> reserve(uint64_t bytes);

  const CudaDriver *driver = nullptr;
  CudaQueues *queues = nullptr;
  CudaHostMemory buffer;
  uint64_t halfBytes = 0;
  uint64_t used = 0; ///< of the half in use
  size_t half = 0;
  std::array<CudaEvent, 2> taken; ///< all copies of a half have been made
};

// Results that the host reads later: each is copied, in the order of the
// compute stream, to a place of its own in pinned memory, with an event behind
// it. The host so waits for a result only, not for what was queued after it.

/// A ring of Device::kMaxStartedReads reads of kMaxStartedBytes; the caller
/// keeps to both.
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
  std::vector<CudaEvent> arrived; ///< per place
  size_t started = 0, finished = 0; ///< reads so far
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDATRANSFERS_H
