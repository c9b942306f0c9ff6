// SPDX-License-Identifier: MIT

// Owners of the driver's objects: each frees its stream, event, module, graph
// or memory when it is destroyed. Errors of freeing are ignored, because their
// cause was reported before.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAHANDLE_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAHANDLE_H

#include <utility>

#include "runtime/Kernels/Cuda/CudaApi.h"

namespace qlora {

/// Movable; an empty handle owns nothing. `Destroy` is a member of CudaDriver.
template <typename Handle, auto Destroy> class CudaHandle {
public:
  CudaHandle() = default;
  CudaHandle(const CudaDriver &driver, Handle handle)
      : driver(&driver), handle(handle) {}
  CudaHandle(CudaHandle &&other) noexcept
      : driver(other.driver), handle(std::exchange(other.handle, Handle{})) {}
  CudaHandle &operator=(CudaHandle &&other) noexcept {
    std::swap(driver, other.driver);
    std::swap(handle, other.handle);
    return *this;
  }
  ~CudaHandle() {
    if (handle)
      (void)(driver->*Destroy)(handle);
  }

  Handle get() const { return handle; }
  explicit operator bool() const { return handle != Handle{}; }

private:
  const CudaDriver *driver = nullptr;
  Handle handle{};
};

using CudaStream = CudaHandle<CUstream, &CudaDriver::streamDestroy>;
using CudaEvent = CudaHandle<CUevent, &CudaDriver::eventDestroy>;
using CudaModule = CudaHandle<CUmodule, &CudaDriver::moduleUnload>;
using CudaGraph = CudaHandle<CUgraph, &CudaDriver::graphDestroy>;
using CudaGraphExec = CudaHandle<CUgraphExec, &CudaDriver::graphExecDestroy>;
using CudaMemory = CudaHandle<CUdeviceptr, &CudaDriver::memFree>;
using CudaHostMemory = CudaHandle<void *, &CudaDriver::memFreeHost>;

/// A range of device memory, not owned.
struct CudaSpan {
  CUdeviceptr address;
  uint64_t bytes;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAHANDLE_H
