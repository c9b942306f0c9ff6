// SPDX-License-Identifier: MIT

// Results that the host reads later: each is copied, in the order of the
// compute stream, to a place of its own in pinned memory, with an event behind
// it. The host so waits for a result only, not for what was queued after it.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAREADS_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAREADS_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/Device/Cuda/CudaHandle.h"
#include "runtime/Device/Cuda/CudaQueues.h"

namespace qlora {

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

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAREADS_H
