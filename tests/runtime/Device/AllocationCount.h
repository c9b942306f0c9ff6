// SPDX-License-Identifier: MIT

// Counts this test binary's allocations by plain operator new; aligned
// allocations are not counted.

#ifndef QLORA_TESTS_RUNTIME_DEVICE_ALLOCATIONCOUNT_H
#define QLORA_TESTS_RUNTIME_DEVICE_ALLOCATIONCOUNT_H

#include <atomic>
#include <cstdint>

namespace qlora {

/// Sanitizers replace the allocator.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1
#endif

struct AllocationCount {
  std::atomic<int64_t> calls{0};
  std::atomic<uint64_t> liveBytes{0};
  std::atomic<uint64_t> mostBytes{0}; ///< maximum of liveBytes since it was set
};
inline AllocationCount allocations;

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_DEVICE_ALLOCATIONCOUNT_H
