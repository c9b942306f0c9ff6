// SPDX-License-Identifier: MIT

// Stacks for the threads of a block, and the switch between them: registers
// that a called function must keep go on the stack that is left. A few
// nanoseconds; swapcontext would make two system calls.

#ifndef QLORA_TESTS_CUDA_DRIVER_FIBER_H
#define QLORA_TESTS_CUDA_DRIVER_FIBER_H

#include <cstddef>
#include <vector>

namespace qlora::platform {

/// Leaves this stack, keeping its pointer in `*from`, and goes on at `to`.
extern "C" void qlora_platform_switch(void **from, void *to);

/// Stacks with an unreadable page below each, made when first needed and used
/// again; they live as long as the process.
class FiberStacks {
public:
  /// Where to switch to so that `entry` runs, which never returns.
  void *start(size_t stack, void (*entry)());
  /// A free stack, by number.
  size_t take();
  void giveBack(size_t stack) { free.push_back(stack); }
  /// Takes all of them back, those of abandoned threads too.
  void reset();

private:
  std::vector<char *> tops;
  std::vector<size_t> free;
};

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_FIBER_H
