// SPDX-License-Identifier: MIT

// Limits oneDNN to instructions that work on this machine.
//
// Some hypervisors announce a CPU's matrix tiles (AMX) but hide their sizes
// (Intel SDM 2, CPUID leaf 1DH). oneDNN 2.6, and PyTorch's oneDNN, then
// configure tiles of size 0; using such tiles is an illegal instruction.

#ifndef QLORA_RUNTIME_KERNELS_CPU_INSTRUCTIONLIMIT_H
#define QLORA_RUNTIME_KERNELS_CPU_INSTRUCTIONLIMIT_H

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace qlora {

/// Returns whether this CPU announces tiles but hides their sizes. Inline, so
/// that the bench's probe does the same check without linking oneDNN.
inline bool hidesTileSizes() {
#ifdef __x86_64__
  unsigned maxPalette = 0, ebx, ecx, edx;
  const bool areKnown =
      __get_cpuid_count(0x1d, 0, &maxPalette, &ebx, &ecx, &edx) != 0 &&
      maxPalette > 0;
  return __builtin_cpu_supports("amx-tile") && !areKnown;
#else
  return false;
#endif
}

/// Must be called before any other use of oneDNN, since the first use fixes the
/// instructions. Any thread may call it, any number of times. Does not override
/// a limit set by the user (ONEDNN_MAX_CPU_ISA).
void limitInstructions();

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_INSTRUCTIONLIMIT_H
