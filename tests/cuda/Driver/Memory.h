// SPDX-License-Identifier: MIT

// Device and pinned memory, in host memory. An allocation ends at the end of a
// page and has unreadable pages around it, so that an access outside of it
// faults; the few bytes between its end and the page's, and those before its
// begin, hold a pattern that is checked after every kernel that names it.
// Fresh memory is full of 0xff: NaN as a float, -1 as an index. Addresses are
// never used again, so that a use after the free faults too.

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

/// Null where the system has no memory. The alignment is a power of two.
const Allocation *allocateMemory(size_t bytes, int device,
                                 size_t alignment = 256, bool isMapped = false);

/// False where `base` is not the begin of a live allocation of that kind.
bool freeMemory(const void *base, bool isPinned);

/// The live allocation that holds all of [address, address + bytes).
const Allocation *findMemory(const void *address, size_t bytes = 1);

/// "0x7f.. (12 bytes past the end of an allocation of 4096 bytes)".
std::string describeAddress(const void *address);

/// False where bytes around the allocation were written.
bool isIntact(const Allocation &allocation);

/// Bytes of live allocations of a device.
size_t allocatedBytes(int device);

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_MEMORY_H
