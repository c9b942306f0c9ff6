// SPDX-License-Identifier: MIT

// The arenas of a module and the step block in device memory. Arenas on the
// host are pinned memory that GPU kernels read and write.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAARENAS_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAARENAS_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Device/Cuda/CudaHandle.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"

namespace qlora {

class CudaArenas {
public:
  /// Allocates each arena once and zeroes it, except frozen arenas on the host,
  /// which loading overwrites. Returns kResourceExhausted if the GPU has too
  /// little free memory for all arenas; the message names the processes that
  /// hold memory. If a single allocation fails, the message names the arena,
  /// its bytes, and the free GPU memory.
  Status allocate(const CudaDriver &driver, std::span<const qlora_arena> arenas,
                  const CudaGpu &gpu, CUstream stream);

  CUdeviceptr address(uint32_t arena) const { return addresses[arena]; }
  /// Returns an arena's host address; null if it is in device memory.
  uint8_t *hostAddress(uint32_t arena) const {
    return static_cast<uint8_t *>(hostMemory[arena].get());
  }
  const std::vector<uint64_t> &bytes() const { return sizes; } ///< per arena
  /// Returns the bytes of all arenas in device memory.
  uint64_t totalBytes() const;
  /// Returns the device address of the qlora_step_block.
  CUdeviceptr step() const { return stepMemory.get(); }
  /// Returns each arena's device address; the host must not dereference it.
  std::vector<uint8_t *> bases() const;
  /// Returns the non-empty arenas in device memory.
  std::vector<CudaSpan> spans() const;

private:
  Status allocateArena(const CudaDriver &driver, const qlora_arena &arena,
                       const CudaGpu &gpu, CUstream stream);
  Status allocateHost(const CudaDriver &driver, const qlora_arena &arena);

  std::vector<CudaMemory> memory;         ///< per arena; empty if on the host
  std::vector<CudaHostMemory> hostMemory; ///< per arena; empty if on the GPU
  std::vector<CUdeviceptr> addresses;
  std::vector<uint64_t> sizes;
  CudaMemory stepMemory;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAARENAS_H
