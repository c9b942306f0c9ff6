// SPDX-License-Identifier: MIT

// A handle of cuDNN for the current context, made where a kernel asks for it.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDNNHANDLE_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDNNHANDLE_H

#include <optional>

#include "runtime/Kernels/Cuda/CudnnApi.h"

namespace qlora {

class CudnnHandle {
public:
  CudnnHandle() = default;
  CudnnHandle(const CudnnHandle &) = delete;
  CudnnHandle &operator=(const CudnnHandle &) = delete;
  ~CudnnHandle() {
    if (handle)
      (void)library->destroy(handle);
  }

  /// Itself, made at the first call; the same refusal at every call.
  StatusOr<const CudnnHandle *> get() {
    if (!made)
      made = create();
    QLORA_RETURN_IF_ERROR(*made);
    return this;
  }

  const Cudnn *library = nullptr;
  cudnnHandle_t handle = nullptr;

private:
  Status create() {
    QLORA_ASSIGN_OR_RETURN(library, Cudnn::open());
    return library->check(library->create(&handle), "cudnnCreate");
  }
  std::optional<Status> made;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDNNHANDLE_H
