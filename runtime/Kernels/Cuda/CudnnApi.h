// SPDX-License-Identifier: MIT

// cuDNN as a table of functions, opened at run time like those of CudaApi.h.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDNNAPI_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDNNAPI_H

#include "runtime/Base/Status.h"
#include "runtime/Kernels/Cuda/CudaTypes.h"
#include "runtime/Kernels/Cuda/CudnnTypes.h"

namespace qlora {

/// libcudnn.so.9, of cuDNN 9.19 or later: the oldest whose plans for our
/// graphs were looked at. A machine without it uses our own kernels.
struct Cudnn {
  static StatusOr<const Cudnn *> open();
  /// The same of another file, which stays open too. For tests.
  static StatusOr<Cudnn> openFile(const char *file);

  /// Everything that cuDNN refuses is kUnavailable, with the first line
  /// of its own explanation; no memory is kResourceExhausted.
  Status check(cudnnStatus_t status, const char *what) const;

  size_t (*getVersion)(); ///< 10000 * major + 100 * minor + patch
  void (*getLastErrorString)(char *text, size_t size);
#define QLORA_CUDNN(Name, Symbol, Parameters) cudnnStatus_t(*Name) Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDNNAPI_H
