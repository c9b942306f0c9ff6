// SPDX-License-Identifier: MIT

// The context switch in assembly, and stacks from mmap.

#include "tests/cuda/Driver/Fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#ifndef __x86_64__
#error "the software CUDA platform switches stacks on x86-64 only"
#endif

// Ends with an indirect jump. For a return, the CPU would always predict the
// wrong target.
asm(R"(
.text
.globl qlora_platform_switch
.type qlora_platform_switch,@function
qlora_platform_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size qlora_platform_switch,.-qlora_platform_switch
)");

namespace qlora::platform {

static constexpr size_t kStackBytes = 64 << 10;
static constexpr size_t kStackGuardBytes = 4096;

void *FiberStacks::start(size_t stack, void (*entry)()) {
  // From the top: an unused return address, which aligns the stack as in a
  // call; the entry; six registers.
  auto *top = reinterpret_cast<uint64_t *>(tops[stack]);
  *--top = 0;
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; ++i)
    *--top = 0;
  return top;
}

size_t FiberStacks::take() {
  if (!free.empty()) {
    const size_t stack = free.back();
    free.pop_back();
    return stack;
  }
  void *memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kStackGuardBytes, PROT_NONE)) {
    std::perror("cuda-platform: a thread's stack");
    std::abort();
  }
  // Put stack tops into different cache sets, because every switch uses one.
  const size_t shift = 64 * ((tops.size() * 5) % 61);
  tops.push_back(static_cast<char *>(memory) + kStackBytes - shift);
  return tops.size() - 1;
}

void FiberStacks::reset() {
  free.clear();
  for (size_t i = tops.size(); i > 0; --i)
    free.push_back(i - 1);
}

} // namespace qlora::platform
