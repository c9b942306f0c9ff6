// SPDX-License-Identifier: MIT

// NVIDIA's libraries as tables of functions, opened at run time. A machine
// without them gets one line that says what is missing and what brings it.
//
//   QLORA_ASSIGN_OR_RETURN(const CudaDriver *driver, CudaDriver::open());
//   QLORA_RETURN_IF_ERROR(driver->check(driver->init(0), "cuInit"));
//
// A table lives as long as the process. Thread-safe after open().

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAAPI_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAAPI_H

#include "runtime/Core/Status.h"
#include "runtime/Device/Cuda/CudaTypes.h"

namespace qlora {

/// libcuda.so.1, of CUDA 12.0 or later.
struct CudaDriver {
  static StatusOr<const CudaDriver *> open();

  /// "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY: out of memory" where `result`
  /// is an error. Out of memory is kResourceExhausted.
  Status check(CUresult result, const char *what) const;

#define QLORA_DRIVER(Name, Symbol, Parameters) CUresult(*Name) Parameters;
#include "runtime/Device/Cuda/CudaSymbols.inc"
};

/// libcublasLt.so.13 or libcublasLt.so.12.
struct CublasLt {
  static StatusOr<const CublasLt *> open();

  Status check(cublasStatus_t status, const char *what) const;

#define QLORA_CUBLASLT(Name, Symbol, Parameters)                               \
  cublasStatus_t(*Name) Parameters;
#include "runtime/Device/Cuda/CudaSymbols.inc"
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAAPI_H
