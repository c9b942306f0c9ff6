// SPDX-License-Identifier: MIT

// Counts the test program's allocations with plain operator new. Aligned
// allocations are not counted.

#ifndef QLORA_TESTS_RUNTIME_DEVICE_ALLOCATIONCOUNT_H
#define QLORA_TESTS_RUNTIME_DEVICE_ALLOCATIONCOUNT_H

#include <atomic>
#include <cstdint>

namespace qlora {

/// Sanitizers replace the allocator, so allocations cannot be counted.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1
#endif

struct AllocationCount {
  std::atomic<int64_t> calls{0};
  std::atomic<uint64_t> liveBytes{0};
  std::atomic<uint64_t> mostBytes{0}; ///< maximum of liveBytes since its reset
};
inline AllocationCount allocations;

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_DEVICE_ALLOCATIONCOUNT_H
