// SPDX-License-Identifier: MIT

// Memory mapped from the system: page-aligned, zero at first, returned when
// the owner ends. Arenas are made of it.

#ifndef QLORA_RUNTIME_BASE_HOSTMEMORY_H
#define QLORA_RUNTIME_BASE_HOSTMEMORY_H

#include <cstdint>
#include <span>

#include "runtime/Base/Status.h"

namespace qlora {

/// Movable; an empty one owns nothing.
class HostMemory {
public:
  HostMemory() = default;
  /// Private memory, with huge pages where the system has them.
  static StatusOr<HostMemory> anonymous(uint64_t bytes);
  /// A descriptor of shared memory of `bytes`, which the caller closes. It has
  /// no path and ends with its last process. `name`: what /proc shows.
  static StatusOr<int> createShared(const char *name, uint64_t bytes);
  /// Shared memory behind a descriptor of exactly `bytes`.
  static StatusOr<HostMemory> shared(int descriptor, uint64_t bytes);
  /// The first `bytes` of a file that has at least so many, to read.
  static StatusOr<HostMemory> readOnly(int descriptor, uint64_t bytes);

  HostMemory(HostMemory &&other) noexcept;
  HostMemory &operator=(HostMemory &&other) noexcept;
  ~HostMemory();

  std::span<uint8_t> bytes() const { return {base, size}; }
  /// No write from this process any more.
  Status protect();

private:
  HostMemory(uint8_t *base, uint64_t size) : base(base), size(size) {}
  static StatusOr<HostMemory> map(uint64_t bytes, int protection, int flags,
                                  int descriptor);

  uint8_t *base = nullptr;
  uint64_t size = 0;
};

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_HOSTMEMORY_H
