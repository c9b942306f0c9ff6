// SPDX-License-Identifier: MIT

// Device and pinned memory, in host memory. An allocation ends near the end of
// a page, between unreadable pages, so that most accesses outside of it fault.
// The bytes before its start, and from its end to the page's end, hold a
// pattern. The driver checks the pattern after every kernel that uses the
// allocation. New memory is filled with 0xff: NaN as a float, -1 as an index.
// Addresses are never reused, so that a use after free faults too.

#ifndef QLORA_TESTS_CUDA_DRIVER_MEMORY_H
#define QLORA_TESTS_CUDA_DRIVER_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <string>

namespace qlora::platform {

struct Allocation {
  char *base;
  size_t bytes;
  int device;    ///< kPinned: host memory
  bool isMapped; ///< pinned memory that every device reads
  char *mapped;
  size_t mappedBytes;
};
inline constexpr int kPinned = -1;

/// Returns null if the system has no memory. `alignment` is a power of two.
const Allocation *allocateMemory(size_t bytes, int device,
                                 size_t alignment = 256, bool isMapped = false);

/// Returns false unless a live allocation begins at `base`, pinned if
/// `isPinned`.
bool freeMemory(const void *base, bool isPinned);

/// Returns the live allocation that contains [address, address + bytes), or
/// null.
const Allocation *findMemory(const void *address, size_t bytes = 1);

/// Returns "0x7f.. (12 bytes past the end of an allocation of 4096 bytes)".
std::string describeAddress(const void *address);

/// Returns false if guard bytes around the allocation were overwritten.
bool isIntact(const Allocation &allocation);

/// Returns the bytes of a device's live allocations.
size_t allocatedBytes(int device);

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_MEMORY_H
