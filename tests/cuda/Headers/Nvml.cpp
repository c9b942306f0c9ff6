// SPDX-License-Identifier: MIT

// Compares our declarations of libnvidia-ml.so.1 with nvml.h.

#include <nvml.h>

#include "tests/cuda/Headers/SameAbi.h"

#include "runtime/Kernels/Cuda/CudaTypes.h"
#include "tests/cuda/Nvml/Codes.h"

namespace qlora {

QLORA_SAME_STRUCT(nvmlProcessInfo_t)
QLORA_SAME_FIELD(nvmlProcessInfo_t, pid, pid)
QLORA_SAME_FIELD(nvmlProcessInfo_t, usedGpuMemory, usedGpuMemory)
QLORA_SAME_FIELD(nvmlProcessInfo_t, gpuInstanceId, gpuInstanceId)
QLORA_SAME_FIELD(nvmlProcessInfo_t, computeInstanceId, computeInstanceId)

QLORA_SAME_STRUCT(nvmlUtilization_t)
QLORA_SAME_FIELD(nvmlUtilization_t, gpu, gpu)
QLORA_SAME_FIELD(nvmlUtilization_t, memory, memory)

#define QLORA_NVML(Name, Symbol, Parameters)                                   \
  QLORA_SAME_FUNCTION(#Symbol, Symbol, nvmlReturn_t, Parameters)
#include "runtime/Kernels/Cuda/CudaSymbols.inc"

QLORA_SAME_CONSTANT(kNvmlUnknown, NVML_VALUE_NOT_AVAILABLE);
QLORA_SAME_CONSTANT(kNvmlInsufficientSize, NVML_ERROR_INSUFFICIENT_SIZE);

namespace platform {
QLORA_PLATFORM_NVML_CODES(QLORA_SAME_ROW)
} // namespace platform

} // namespace qlora
