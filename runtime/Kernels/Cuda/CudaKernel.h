// SPDX-License-Identifier: MIT

// How the CUDA device runs a library kernel: prepare once at load, enqueue
// many times, also while a stream is captured into a graph. The counterpart
// of LibraryKernel.h; rows of Kernels.def with the target `cuda`.
//
// Device code of ours is in Kernels/Cuda/Device/*.cu, which the compiler puts
// into every train.so for CUDA; each file is one unit of the image table. Its
// functions take one qlora_cuda_args (ABI/kernel.h), like the generated ones.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDAKERNEL_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDAKERNEL_H

#include <memory>
#include <span>
#include <string_view>

#include "runtime/Kernels/Cuda/GemmSelection.h"
#include "runtime/Kernels/Cuda/LibraryHandles.h"
#include "runtime/Kernels/LibraryKernel.h"

namespace qlora {

/// What kernels ask of the device that they run on. Outlives them.
class CudaContext {
public:
  virtual ~CudaContext() = default;
  virtual const CudaDriver &driver() const = 0;
  virtual const CublasLt &blas() const = 0;
  virtual cublasLtHandle_t blasHandle() const = 0;
  /// A handle of cuDNN for this device, made when it is first asked for;
  /// kUnavailable, each time, where there is none.
  virtual StatusOr<const CudnnHandle *> cudnn() = 0;
  virtual int multiprocessors() const = 0;
  /// The compute capability: 90 for 9.0.
  virtual uint32_t arch() const = 0;
  /// A __global__ function of the loaded images, by its symbol.
  virtual StatusOr<CUfunction> function(std::string_view symbol) = 0;

  /// The algorithms of all matrix products that are prepared here.
  GemmSelection gemms;
};

struct CudaKernelArgs {
  std::span<void *const> buffers; ///< device addresses; null when absent
  const qlora_step_block *step = nullptr; ///< in device memory
  CUstream stream = nullptr;
  KernelObserver *observer = nullptr; ///< set only outside of a capture
  /// At most so many rows of the micro-batch have a label.
  int64_t labelledRows = INT64_MAX;
};

/// A prepared launch; used from the one thread of its device.
class CudaKernel {
public:
  virtual ~CudaKernel() = default;
  /// Puts its work on the stream. Allocates nothing and waits for nothing,
  /// unless there is an observer, whose blocks are read back at once.
  virtual Status enqueue(const CudaKernelArgs &args) = 0;
};

/// Prepares `row` for `request`, with at most `workspaceBytes` of workspace.
/// A refusal (kUnavailable) makes the caller try the op's next row.
StatusOr<std::unique_ptr<CudaKernel>>
prepareCudaKernel(const KernelRow &row, const KernelRequest &request,
                  uint64_t workspaceBytes, CudaContext &context);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDAKERNEL_H
