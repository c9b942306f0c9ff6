// SPDX-License-Identifier: MIT

// The memory of the frozen weights. One rank alone uses plain anonymous
// memory. Local CPU ranks share one copy: the launcher makes it with
// createShared(), rank processes inherit the descriptor and map it with
// fromDescriptor(); it has no name, so nothing is left behind when all have
// ended, however they end.
//
// Filling a shared arena: rank r of n fills every n-th parameter
// (Parameters.h), then all ranks meet in a barrier, then each calls protect():
// from there on a write is a crash in the rank that made it, not a wrong
// number in another.

#ifndef QLORA_RUNTIME_CORE_FROZENARENA_H
#define QLORA_RUNTIME_CORE_FROZENARENA_H

#include <cstdint>
#include <span>

#include "runtime/Core/HostMemory.h"
#include "runtime/Core/Status.h"

namespace qlora {

/// Movable; unmapped when destroyed. Page-aligned and zero at first.
class FrozenArena {
public:
  /// An arena of no bytes.
  FrozenArena() = default;
  /// Memory of this process alone.
  static StatusOr<FrozenArena> anonymous(uint64_t bytes);
  /// For the launcher: a descriptor of shared memory of `bytes`, which the
  /// caller closes; it is not close-on-exec, so that children inherit it.
  static StatusOr<int> createShared(uint64_t bytes);
  /// For a rank: maps an inherited descriptor, whose size must be `bytes`.
  /// The descriptor may be closed afterwards.
  static StatusOr<FrozenArena> fromDescriptor(int descriptor, uint64_t bytes);

  std::span<uint8_t> bytes() const { return memory.bytes(); }
  bool isShared() const { return shared; }
  /// No write from this process any more.
  Status protect() { return memory.protect(); }

private:
  FrozenArena(HostMemory memory, bool shared)
      : memory(std::move(memory)), shared(shared) {}

  HostMemory memory;
  bool shared = false;
};

} // namespace qlora

#endif // QLORA_RUNTIME_CORE_FROZENARENA_H
