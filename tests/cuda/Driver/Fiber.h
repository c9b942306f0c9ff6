// SPDX-License-Identifier: MIT

// Stacks for the threads of a block, and the switch between them. A switch
// saves callee-saved registers on the old stack and takes a few nanoseconds. In
// contrast, swapcontext would make two system calls.

#ifndef QLORA_TESTS_CUDA_DRIVER_FIBER_H
#define QLORA_TESTS_CUDA_DRIVER_FIBER_H

#include <cstddef>
#include <vector>

namespace qlora::platform {

/// Saves the current stack's pointer in `*from` and continues on the stack
/// `to`.
extern "C" void qlora_platform_switch(void **from, void *to);

/// Stacks with an unreadable page below each. They are created when first
/// needed, reused, and live as long as the process.
class FiberStacks {
public:
  /// Returns a stack pointer. Switching to it runs `entry`, which must never
  /// return.
  void *start(size_t stack, void (*entry)());
  /// Returns the index of a free stack.
  size_t take();
  void giveBack(size_t stack) { free.push_back(stack); }
  /// Marks all stacks as free, including those of abandoned threads.
  void reset();

private:
  std::vector<char *> tops;
  std::vector<size_t> free;
};

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_FIBER_H
