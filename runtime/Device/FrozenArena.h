// SPDX-License-Identifier: MIT

// The memory of the frozen weights. Where an earlier run has left them in a
// file (Weights/BaseFile.h), filled() maps that file: all ranks and runs of
// the machine have the same pages, which the system may drop and read again.
// Otherwise one rank alone uses plain anonymous memory, and local CPU ranks
// share one copy: the first makes it with HostMemory::createShared(), the others
// open its descriptor, and each maps it with fromDescriptor(); it has no name,
// so nothing is left behind when all have ended, however they end.
//
// Filling a shared arena: rank r of n fills every n-th parameter
// (Parameters.h), then all ranks meet in a barrier, then each calls protect():
// from there on a write is a crash in the rank that made it, not a wrong
// number in another. Where ranks hold a base in pieces each has other bytes, and
// memory of its own.

#ifndef QLORA_RUNTIME_DEVICE_FROZENARENA_H
#define QLORA_RUNTIME_DEVICE_FROZENARENA_H

#include <cstdint>
#include <span>

#include "runtime/Base/HostMemory.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// The share of the parameters that one rank of a host fills: number i of
/// the table where i % size == rank.
struct FillShare {
  unsigned rank = 0;
  unsigned size = 1;
};

/// Movable; unmapped when destroyed. Page-aligned and zero at first.
class FrozenArena {
public:
  /// An arena of no bytes.
  FrozenArena() = default;
  /// Memory of this process alone.
  static StatusOr<FrozenArena> anonymous(uint64_t bytes) {
    return of(HostMemory::anonymous(bytes), Kind::kPrivate);
  }
  /// Maps a descriptor of HostMemory::createShared(bytes), which may be closed
  /// afterwards.
  static StatusOr<FrozenArena> fromDescriptor(int descriptor, uint64_t bytes) {
    return of(HostMemory::shared(descriptor, bytes), Kind::kShared);
  }
  /// The first `bytes` of a file, which hold the weights already: nothing may
  /// be written. The descriptor may be closed afterwards.
  static StatusOr<FrozenArena> filled(int descriptor, uint64_t bytes) {
    return of(HostMemory::readOnly(descriptor, bytes), Kind::kFilled);
  }

  std::span<uint8_t> bytes() const { return memory.bytes(); }
  bool isShared() const { return kind != Kind::kPrivate; }
  bool isFilled() const { return kind == Kind::kFilled; }
  /// No write from this process any more.
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
