// SPDX-License-Identifier: MIT

// Compares our declarations of libcuda.so.1 and those of the software driver
// with cuda.h.

#include <cuda.h>
#include <cudaTypedefs.h>

#include "tests/cuda/Headers/SameAbi.h"

#include "runtime/Kernels/Cuda/CudaTypes.h"
#include "tests/cuda/Driver/Codes.h"

// CUDA 12.8 has a second version of cuEventElapsedTime, which does not report
// errors of unfinished work. Drivers of CUDA 12.0 have only the first version;
// later drivers have both.
#undef cuEventElapsedTime
extern "C" std::remove_pointer_t<PFN_cuEventElapsedTime_v2000>
    cuEventElapsedTime;

namespace qlora {

#define QLORA_DRIVER(Name, Symbol, Parameters)                                 \
  QLORA_SAME_FUNCTION(#Symbol, Symbol, CUresult, Parameters)
#include "runtime/Kernels/Cuda/CudaSymbols.inc"

QLORA_SAME_CONSTANT(kCudaAttributeMultiprocessors,
                    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
QLORA_SAME_CONSTANT(kCudaAttributeMajor,
                    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
QLORA_SAME_CONSTANT(kCudaAttributeMinor,
                    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
QLORA_SAME_CONSTANT(kCudaFuncMaxDynamicShared,
                    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
QLORA_SAME_CONSTANT(kCudaHostMapped, CU_MEMHOSTALLOC_DEVICEMAP);
QLORA_SAME_CONSTANT(kCudaStreamNonBlocking, CU_STREAM_NON_BLOCKING);
QLORA_SAME_CONSTANT(kCudaEventDisableTiming, CU_EVENT_DISABLE_TIMING);
QLORA_SAME_CONSTANT(kCudaCaptureThreadLocal,
                    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
QLORA_SAME_CONSTANT(0, CUDA_SUCCESS);
QLORA_SAME_CONSTANT(kCudaOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
QLORA_SAME_CONSTANT(kCudaNoDevice, CUDA_ERROR_NO_DEVICE);
QLORA_SAME_CONSTANT(kCudaUnsupportedPtx, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
QLORA_SAME_CONSTANT(kCudaNotFound, CUDA_ERROR_NOT_FOUND);
QLORA_SAME_CONSTANT(kCudaNotReady, CUDA_ERROR_NOT_READY);
QLORA_SAME_CONSTANT(kCudaFirstOfCapture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
QLORA_SAME_CONSTANT(kCudaLastOfCapture, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);

namespace platform {
QLORA_PLATFORM_CODES(QLORA_SAME_ROW)
QLORA_PLATFORM_ATTRIBUTES(QLORA_SAME_ROW)
} // namespace platform

} // namespace qlora
