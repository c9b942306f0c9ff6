// SPDX-License-Identifier: MIT

// Replaces operator new and delete by versions that count.

#include "tests/runtime/Device/AllocationCount.h"

#include <malloc.h>

#include <cstdlib>
#include <new>

#ifdef COUNTS_ALLOCATIONS
using qlora::allocations;

static void giveBack(void *memory) {
  allocations.liveBytes -= malloc_usable_size(memory);
  std::free(memory);
}

void *operator new(size_t bytes, const std::nothrow_t &) noexcept {
  ++allocations.calls;
  void *memory = std::malloc(bytes);
  const uint64_t live = allocations.liveBytes += malloc_usable_size(memory);
  uint64_t most = allocations.mostBytes;
  while (live > most &&
         !allocations.mostBytes.compare_exchange_weak(most, live)) {
  }
  return memory;
}
void *operator new(size_t bytes) {
  void *memory = operator new(bytes, std::nothrow);
  if (!memory)
    throw std::bad_alloc();
  return memory;
}
void operator delete(void *memory) noexcept { giveBack(memory); }
void operator delete(void *memory, size_t) noexcept { giveBack(memory); }
#endif
