// SPDX-License-Identifier: MIT

// The memory of the frozen weights. If an earlier run has written them to a
// file (Weights/QuantizedBaseFile.h), filled() maps that file. All ranks and
// runs of the machine then share its pages, which the system may drop and read
// again. Otherwise a single rank uses plain anonymous memory, and local CPU
// ranks share one copy. The first rank creates the copy with
// HostMemory::createShared(), the others open its descriptor, and each rank
// maps it with fromDescriptor(). The copy has no name, so the system frees it
// when all ranks have ended, even after a crash.
//
// Filling a shared arena: rank r of n fills every n-th parameter
// (Parameters.h), then all ranks wait in a barrier, then each rank calls
// protect(). A later write crashes the writing rank and cannot corrupt other
// ranks. Ranks that hold fsdp shards of the base each have private memory.

#ifndef QLORA_RUNTIME_DEVICE_FROZENARENA_H
#define QLORA_RUNTIME_DEVICE_FROZENARENA_H

#include <cstdint>
#include <span>

#include "runtime/Base/HostMemory.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// The parameters that a rank of a host fills: those with index % size == rank.
struct FillShare {
  unsigned rank = 0;
  unsigned size = 1;
};

/// Movable; unmapped when destroyed. Page-aligned and zero at first.
class FrozenArena {
public:
  FrozenArena() = default;
  /// Allocates memory private to this process.
  static StatusOr<FrozenArena> anonymous(uint64_t bytes) {
    return of(HostMemory::anonymous(bytes), Kind::kPrivate);
  }
  /// Maps HostMemory::createShared(bytes). The descriptor may then be closed.
  static StatusOr<FrozenArena> fromDescriptor(int descriptor, uint64_t bytes) {
    return of(HostMemory::shared(descriptor, bytes), Kind::kShared);
  }
  /// Maps the first `bytes` of a file that already holds the weights,
  /// read-only. The descriptor may be closed afterwards.
  static StatusOr<FrozenArena> filled(int descriptor, uint64_t bytes) {
    return of(HostMemory::readOnly(descriptor, bytes), Kind::kFilled);
  }

  std::span<uint8_t> bytes() const { return memory.bytes(); }
  bool isShared() const { return kind != Kind::kPrivate; }
  bool isFilled() const { return kind == Kind::kFilled; }
  /// Forbids further writes from this process.
  Status protect() { return memory.protect(); }

private:
  enum class Kind { kPrivate, kShared, kFilled };
  FrozenArena(HostMemory memory, Kind kind)
      : memory(std::move(memory)), kind(kind) {}
  static StatusOr<FrozenArena> of(StatusOr<HostMemory> memory, Kind kind) {
    QLORA_RETURN_IF_ERROR(memory.status());
    if (kind == Kind::kFilled)
      memory->populate();
    return FrozenArena(std::move(memory).value(), kind);
  }

  HostMemory memory;
  Kind kind = Kind::kPrivate;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_FROZENARENA_H
