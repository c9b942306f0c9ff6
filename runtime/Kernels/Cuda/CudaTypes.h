// SPDX-License-Identifier: MIT

// Types and constants of NVIDIA's binary interfaces that CudaSymbols.inc uses,
// so that the runtime builds without a CUDA toolkit. Names and values equal
// those of cuda.h and cublasLt.h (CUDA 12 and 13), nccl.h (2.14) and nvml.h;
// tests/cuda/Headers compares them.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDATYPES_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDATYPES_H

#include <cstddef>
#include <cstdint>

namespace qlora {

using CUresult = int; ///< 0: success
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st *;
using CUmodule = struct CUmod_st *;
using CUfunction = struct CUfunc_st *;
using CUstream = struct CUstream_st *;
using CUevent = struct CUevent_st *;
using CUgraph = struct CUgraph_st *;
using CUgraphExec = struct CUgraphExec_st *;

inline constexpr int kCudaAttributeMultiprocessors = 16;
inline constexpr int kCudaAttributeMajor = 75;
inline constexpr int kCudaAttributeMinor = 76;
inline constexpr int kCudaFuncMaxDynamicShared = 8;
inline constexpr unsigned kCudaHostMapped = 2; ///< CU_MEMHOSTALLOC_DEVICEMAP
inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr unsigned kCudaEventDisableTiming = 2;
inline constexpr int kCudaCaptureThreadLocal = 1;
/// CUDA_ERROR_...
inline constexpr CUresult kCudaOutOfMemory = 2, kCudaNoDevice = 100,
                          kCudaUnsupportedPtx = 222, kCudaNotFound = 500,
                          kCudaNotReady = 600;
/// First and last error of calls that a stream capture forbids:
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to _WRONG_THREAD.
inline constexpr CUresult kCudaFirstOfCapture = 900, kCudaLastOfCapture = 908;

// X(name in this project, value, NVIDIA's name)
#define QLORA_CUBLAS_STATUSES(X)                                               \
  X(kCublasNotInitialized, 1, CUBLAS_STATUS_NOT_INITIALIZED)                   \
  X(kCublasAllocationFailed, 3, CUBLAS_STATUS_ALLOC_FAILED)                    \
  X(kCublasInvalidValue, 7, CUBLAS_STATUS_INVALID_VALUE)                       \
  X(kCublasArchMismatch, 8, CUBLAS_STATUS_ARCH_MISMATCH)                       \
  X(kCublasMappingError, 11, CUBLAS_STATUS_MAPPING_ERROR)                      \
  X(kCublasExecutionFailed, 13, CUBLAS_STATUS_EXECUTION_FAILED)                \
  X(kCublasInternalError, 14, CUBLAS_STATUS_INTERNAL_ERROR)                    \
  X(kCublasNotSupported, 15, CUBLAS_STATUS_NOT_SUPPORTED)
#define QLORA_NCCL_RESULTS(X)                                                  \
  X(kNcclUnhandledCudaError, 1, ncclUnhandledCudaError)                        \
  X(kNcclSystemError, 2, ncclSystemError)                                      \
  X(kNcclInternalError, 3, ncclInternalError)                                  \
  X(kNcclInvalidArgument, 4, ncclInvalidArgument)                              \
  X(kNcclInvalidUsage, 5, ncclInvalidUsage)                                    \
  X(kNcclRemoteError, 6, ncclRemoteError)                                      \
  X(kNcclInProgress, 7, ncclInProgress)
#define QLORA_CONSTANT(Name, Value, Theirs) inline constexpr int Name = Value;
QLORA_CUBLAS_STATUSES(QLORA_CONSTANT)
QLORA_NCCL_RESULTS(QLORA_CONSTANT)
#undef QLORA_CONSTANT
// Expands to a `case` that returns NVIDIA's name of a value.
#define QLORA_RETURN_NAME(Name, Value, Theirs)                                 \
  case Name:                                                                   \
    return #Theirs;

using cublasStatus_t = int; ///< 0: success
using cublasLtHandle_t = struct cublasLtContext *;
using cublasLtMatmulDesc_t = struct cublasLtMatmulDescOpaque *;
using cublasLtMatrixLayout_t = struct cublasLtMatrixLayoutOpaque *;
using cublasLtMatmulPreference_t = struct cublasLtMatmulPreferenceOpaque *;

struct cublasLtMatmulAlgo_t {
  uint64_t data[8];
  bool operator==(const cublasLtMatmulAlgo_t &) const = default;
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
};

inline constexpr int kCudaR32F = 0;   ///< cudaDataType_t
inline constexpr int kCudaR16BF = 14; ///< cudaDataType_t
inline constexpr int kCublasCompute32F = 68;
inline constexpr int kCublasDescTransposeA = 3;
inline constexpr int kCublasDescTransposeB = 4;
inline constexpr int32_t kCublasOpN = 0;
inline constexpr int32_t kCublasOpT = 1;
inline constexpr int kCublasPreferenceMaxWorkspace = 1;
/// Attribute: bit mask of the allowed reduction schemes (uint32_t).
inline constexpr int kCublasPreferenceReductionMask = 3;
/// Attribute: minimum alignment of A in bytes (uint32_t). The attributes of B,
/// C and D have the next three numbers.
inline constexpr int kCublasPreferenceMinAlignmentA = 5;
/// Attribute of cublasLtMatmulAlgoConfigAttributes_t: the reduction scheme
/// (uint32_t) of a split-K algorithm. Its values follow.
inline constexpr int kCublasConfigReduction = 3;
inline constexpr uint32_t kCublasReductionNone = 0;
inline constexpr uint32_t kCublasReductionInPlace = 1;
inline constexpr uint32_t kCublasReductionComputeType = 2;
inline constexpr uint32_t kCublasReductionOutputType = 4;

using ncclResult_t = int; ///< 0: success
using ncclComm_t = struct ncclComm *;

struct ncclUniqueId {
  char internal[128];
};
/// ncclConfig_t of NCCL 2.14. Later libraries use defaults for newer fields.
struct ncclConfig_t {
  size_t size = sizeof(ncclConfig_t);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 1;
  int padding = 0;
};
static_assert(sizeof(ncclConfig_t) == 24);

// ncclDataType_t and ncclRedOp_t.
inline constexpr int kNcclInt8 = 0;
inline constexpr int kNcclUint8 = 1;
inline constexpr int kNcclInt32 = 2;
inline constexpr int kNcclFloat16 = 6;
inline constexpr int kNcclFloat32 = 7;
inline constexpr int kNcclBfloat16 = 9;
inline constexpr int kNcclSum = 0;

using nvmlReturn_t = int; ///< 0: success
using nvmlDevice_t = struct nvmlDevice_st *;

struct nvmlProcessInfo_t {
  unsigned pid;
  unsigned long long usedGpuMemory; ///< bytes, or kNvmlUnknown
  unsigned gpuInstanceId, computeInstanceId;
};
static_assert(sizeof(nvmlProcessInfo_t) == 24);

struct nvmlUtilization_t {
  unsigned gpu;    ///< percent of the last sample period with a kernel running
  unsigned memory; ///< percent of that period with memory accesses
};
inline constexpr unsigned long long kNvmlUnknown = ~0ull;
inline constexpr nvmlReturn_t kNvmlInsufficientSize = 7;

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDATYPES_H
