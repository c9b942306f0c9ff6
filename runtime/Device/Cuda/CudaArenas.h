// SPDX-License-Identifier: MIT

// The arenas of a module, and the step block, in a card's memory.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAARENAS_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAARENAS_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Device/Cuda/CudaCard.h"
#include "runtime/Device/Cuda/CudaHandle.h"

namespace qlora {

class CudaArenas {
public:
  /// Allocates each arena once, and zeroes it on `stream`.
  /// kResourceExhausted names the arena, its bytes and what the card has.
  Status allocate(const CudaDriver &driver, std::span<const qlora_arena> arenas,
                  const CudaCard &card, CUstream stream);

  CUdeviceptr address(uint32_t arena) const { return addresses[arena]; }
  uint64_t bytes(uint32_t arena) const { return sizes[arena]; }
  uint64_t totalBytes() const;
  /// Of a qlora_step_block.
  CUdeviceptr step() const { return stepMemory.get(); }
  /// Device addresses in the form of the tables; not to be looked behind.
  std::vector<uint8_t *> bases() const;

private:
  Status allocateArena(const CudaDriver &driver, const qlora_arena &arena,
                       const CudaCard &card, CUstream stream);

  std::vector<CudaMemory> memory;
  std::vector<CUdeviceptr> addresses;
  std::vector<uint64_t> sizes;
  CudaMemory stepMemory;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAARENAS_H
