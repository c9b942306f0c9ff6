// SPDX-License-Identifier: MIT

// The arenas of a module, and the step block, in a card's memory; the host
// arena, and what else is on the host, in pinned memory of this machine that the
// card's kernels can read and write.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAARENAS_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAARENAS_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Device/Cuda/CudaHandle.h"
#include "runtime/Kernels/Cuda/CudaCard.h"

namespace qlora {

class CudaArenas {
public:
  /// Allocates each arena once, and zeroes it on `stream` (not the host arena,
  /// which is filled as a whole). kResourceExhausted, where the card has too
  /// little for all of them, names who holds the rest, else names the arena, its bytes and
  /// what the card, or pinned memory, has.
  Status allocate(const CudaDriver &driver, std::span<const qlora_arena> arenas,
                  const CudaCard &card, CUstream stream);

  CUdeviceptr address(uint32_t arena) const { return addresses[arena]; }
  /// Of one on the host, where copies find it; else null.
  uint8_t *hostAddress(uint32_t arena) const {
    return static_cast<uint8_t *>(hostMemory[arena].get());
  }
  uint64_t bytes(uint32_t arena) const { return sizes[arena]; }
  /// Of those in the card's memory.
  uint64_t totalBytes() const;
  /// Of a qlora_step_block.
  CUdeviceptr step() const { return stepMemory.get(); }
  /// Device addresses in the form of the tables; not to be looked behind.
  std::vector<uint8_t *> bases() const;
  /// The arenas in the card's memory that are not empty.
  std::vector<CudaSpan> spans() const;

private:
  Status allocateArena(const CudaDriver &driver, const qlora_arena &arena,
                       const CudaCard &card, CUstream stream);
  Status allocateHost(const CudaDriver &driver, const qlora_arena &arena);

  std::vector<CudaMemory> memory;         ///< by arena; where it is on the
  std::vector<CudaHostMemory> hostMemory; ///< host, this and not the other
  std::vector<CUdeviceptr> addresses;
  std::vector<uint64_t> sizes;
  CudaMemory stepMemory;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAARENAS_H
