// SPDX-License-Identifier: MIT

// Gives a kernel its operands in allocations of their own in place of the
// arenas, so that a read or write outside of an operand faults though it would
// hit a neighbour, a read of what is only written gives NaN, and a write to
// what is only read is seen. Only where a test names the module
// (ModuleOperands.h); counts "guarded launches".

#ifndef QLORA_TESTS_CUDA_DRIVER_OPERANDGUARD_H
#define QLORA_TESTS_CUDA_DRIVER_OPERANDGUARD_H

#include "tests/cuda/Driver/Memory.h"
#include "tests/cuda/Driver/ModuleOperands.h"

#include <string>
#include <vector>

namespace qlora::platform {

class OperandGuard {
public:
  /// Replaces the addresses of `args`. `wrong` says why it cannot: the module
  /// has no such launch.
  OperandGuard(const char *symbol, qlora_cuda_args &args, int device,
               std::string &wrong);
  /// Brings back what was written; what the kernel did wrong, or empty.
  std::string finish();

private:
  /// Operands that overlap are one region.
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
