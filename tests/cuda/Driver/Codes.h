// SPDX-License-Identifier: MIT

// CUresult values that the software driver returns, and device attributes that
// it supports, with their names in cuda.h.

#ifndef QLORA_TESTS_CUDA_DRIVER_CODES_H
#define QLORA_TESTS_CUDA_DRIVER_CODES_H

namespace qlora::platform {

// X(name here, value, cuda.h's name)
#define QLORA_PLATFORM_CODES(X)                                                \
  X(kSuccess, 0, CUDA_SUCCESS)                                                 \
  X(kInvalidValue, 1, CUDA_ERROR_INVALID_VALUE)                                \
  X(kOutOfMemory, 2, CUDA_ERROR_OUT_OF_MEMORY)                                 \
  X(kNotInitialized, 3, CUDA_ERROR_NOT_INITIALIZED)                            \
  X(kNoDevice, 100, CUDA_ERROR_NO_DEVICE)                                      \
  X(kInvalidDevice, 101, CUDA_ERROR_INVALID_DEVICE)                            \
  X(kInvalidImage, 200, CUDA_ERROR_INVALID_IMAGE)                              \
  X(kInvalidContext, 201, CUDA_ERROR_INVALID_CONTEXT)                          \
  X(kNoBinary, 209, CUDA_ERROR_NO_BINARY_FOR_GPU)                              \
  X(kEccUncorrectable, 214, CUDA_ERROR_ECC_UNCORRECTABLE)                      \
  X(kInvalidPtx, 218, CUDA_ERROR_INVALID_PTX)                                  \
  X(kUnsupportedPtx, 222, CUDA_ERROR_UNSUPPORTED_PTX_VERSION)                  \
  X(kInvalidHandle, 400, CUDA_ERROR_INVALID_HANDLE)                            \
  X(kNotFound, 500, CUDA_ERROR_NOT_FOUND)                                      \
  X(kNotReady, 600, CUDA_ERROR_NOT_READY)                                      \
  X(kIllegalAddress, 700, CUDA_ERROR_ILLEGAL_ADDRESS)                          \
  X(kOutOfResources, 701, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)                  \
  X(kLaunchTimeout, 702, CUDA_ERROR_LAUNCH_TIMEOUT)                            \
  X(kMisalignedAddress, 716, CUDA_ERROR_MISALIGNED_ADDRESS)                    \
  X(kLaunchFailed, 719, CUDA_ERROR_LAUNCH_FAILED)                              \
  X(kNotSupported, 801, CUDA_ERROR_NOT_SUPPORTED)                              \
  X(kCaptureUnsupported, 900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)           \
  X(kCaptureInvalidated, 901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)           \
  X(kCaptureUnmatched, 903, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)               \
  X(kCaptureUnjoined, 904, CUDA_ERROR_STREAM_CAPTURE_UNJOINED)                 \
  X(kCaptureIsolation, 905, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)               \
  X(kCapturedEvent, 907, CUDA_ERROR_CAPTURED_EVENT)                            \
  X(kUnknown, 999, CUDA_ERROR_UNKNOWN)

#define QLORA_PLATFORM_ATTRIBUTES(X)                                           \
  X(kMaxThreads, 1, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)                 \
  X(kMaxShared, 8, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)            \
  X(kWarpSize, 10, CU_DEVICE_ATTRIBUTE_WARP_SIZE)                              \
  X(kMaxResident, 39, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)      \
  X(kUnifiedAddresses, 41, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)             \
  X(kMaxSharedOptin, 97, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)

#define QLORA_PLATFORM_CODE(Name, Value, Cuda) Name = Value,
enum Code : int { QLORA_PLATFORM_CODES(QLORA_PLATFORM_CODE) };
enum DeviceAttribute : int { QLORA_PLATFORM_ATTRIBUTES(QLORA_PLATFORM_CODE) };
#undef QLORA_PLATFORM_CODE

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_CODES_H
