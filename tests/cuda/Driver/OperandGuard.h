// SPDX-License-Identifier: MIT

// Gives a kernel each operand in a separate allocation instead of an arena. An
// access outside of an operand then faults; in an arena, it would reach another
// buffer. A read of a write-only operand gives NaN. A write to a read-only
// operand is detected. Active only if a test names the module
// (ModuleOperands.h). Counts "guarded launches".

#ifndef QLORA_TESTS_CUDA_DRIVER_OPERANDGUARD_H
#define QLORA_TESTS_CUDA_DRIVER_OPERANDGUARD_H

#include "tests/cuda/Driver/Memory.h"
#include "tests/cuda/Driver/ModuleOperands.h"

#include <string>
#include <vector>

namespace qlora::platform {

class OperandGuard {
public:
  /// Replaces the addresses in `args` by copies of the operands. If the module
  /// has no such launch, sets `wrong` to an error.
  OperandGuard(const char *symbol, qlora_cuda_args &args, int device,
               std::string &wrong);
  /// Copies back what the kernel wrote. Returns the kernel's error; empty if
  /// there is none.
  std::string finish();

private:
  /// A range of bytes; operands that overlap share one region.
  struct Region {
    char *begin;
    size_t bytes;
    int access;
    size_t elementBytes;
    const Allocation *copy;
  };
  void addRegions(std::vector<OperandUse> uses);
  void fill(const Region &region) const;

  std::vector<Region> regions;
};

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_OPERANDGUARD_H
