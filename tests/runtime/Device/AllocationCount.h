// SPDX-License-Identifier: MIT

// What this test binary asks of the heap with a plain operator new. What is
// asked for with an alignment is not counted.

#ifndef QLORA_TESTS_RUNTIME_DEVICE_ALLOCATIONCOUNT_H
#define QLORA_TESTS_RUNTIME_DEVICE_ALLOCATIONCOUNT_H

#include <atomic>
#include <cstdint>

namespace qlora {

/// Sanitizers have an allocator of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1
#endif

struct AllocationCount {
  std::atomic<int64_t> calls{0};
  std::atomic<uint64_t> liveBytes{0};
  std::atomic<uint64_t> mostBytes{0}; ///< live at a time, since it was set
};
inline AllocationCount allocations;

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_DEVICE_ALLOCATIONCOUNT_H
