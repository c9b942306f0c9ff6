// SPDX-License-Identifier: MIT

// Asks the CPU, since oneDNN cannot be asked without using it.

#include "runtime/Kernels/Cpu/InstructionLimit.h"

#include <oneapi/dnnl/dnnl.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <cstdlib>

namespace qlora {

static bool hidesTileSizes() {
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

void limitInstructions() {
  static const bool isDone [[maybe_unused]] = [] {
    if (hidesTileSizes() && !std::getenv("ONEDNN_MAX_CPU_ISA") &&
        !std::getenv("DNNL_MAX_CPU_ISA"))
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
    return true;
  }();
}

} // namespace qlora
