// SPDX-License-Identifier: MIT

// A handle of cuBLASLt, made where a module has library kernels.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUBLASHANDLE_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUBLASHANDLE_H

#include "runtime/Kernels/Cuda/CudaApi.h"

namespace qlora {

/// Empty until create(), of the context that is current then.
class CublasHandle {
public:
  CublasHandle() = default;
  CublasHandle(const CublasHandle &) = delete;
  CublasHandle &operator=(const CublasHandle &) = delete;
  ~CublasHandle() {
    if (handle)
      (void)library->destroy(handle);
  }

  Status create() {
    QLORA_ASSIGN_OR_RETURN(library, CublasLt::open());
    return library->check(library->create(&handle), "cublasLtCreate");
  }

  const CublasLt *library = nullptr;
  cublasLtHandle_t handle = nullptr;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUBLASHANDLE_H
