// SPDX-License-Identifier: MIT

// Asks the CPU, since oneDNN cannot be asked without using it.

#include "runtime/Kernels/Cpu/InstructionLimit.h"

#include <oneapi/dnnl/dnnl.h>

#include <cstdlib>

namespace qlora {

void limitInstructions() {
  static const bool isDone [[maybe_unused]] = [] {
    if (hidesTileSizes() && !std::getenv("ONEDNN_MAX_CPU_ISA") &&
        !std::getenv("DNNL_MAX_CPU_ISA"))
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
    return true;
  }();
}

} // namespace qlora
