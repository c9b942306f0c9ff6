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

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDATRANSFERS_H
