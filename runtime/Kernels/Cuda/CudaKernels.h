// SPDX-License-Identifier: MIT

// What each row of Kernels.def has on CUDA: a function that prepares it, called
// by prepareCudaKernel with a request that the row accepted and a workspace of
// at least the size it promised.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDAKERNELS_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDAKERNELS_H

#include <utility>

#include "runtime/Kernels/Cuda/CudaLaunch.h"

namespace qlora {

using PreparedCudaKernel = StatusOr<std::unique_ptr<CudaKernel>>;

namespace cuda {
#define QLORA_KERNEL_cuda(Op, Implementation)                                  \
  namespace Op::Implementation {                                               \
  PreparedCudaKernel prepare(const KernelRequest &request,                     \
                             CudaContext &context);                            \
  }
#include "runtime/Kernels/Kernels.def"
} // namespace cuda

/// A kernel that is one function of its arguments.
template <typename Function> class CudaFunctionKernel : public CudaKernel {
public:
  explicit CudaFunctionKernel(Function function)
      : function(std::move(function)) {}
  Status enqueue(const CudaKernelArgs &args) override { return function(args); }

private:
  Function function;
};

template <typename Function>
PreparedCudaKernel makeCudaKernel(Function function) {
  return std::unique_ptr<CudaKernel>(
      std::make_unique<CudaFunctionKernel<Function>>(std::move(function)));
}

/// The dtype of an operand that the request has.
inline qlora_dtype cudaDtypeOf(const KernelRequest &request,
                               std::string_view operand) {
  return *request.dtype(operand);
}

/// A kernel that is one launch with the op's own buffers and constants.
PreparedCudaKernel makeLaunchKernel(CudaContext &context,
                                    std::string_view symbol, CudaGrid grid,
                                    std::span<const int64_t> constants);

/// out := x, elementwise, converted where the types differ.
class CudaConversion {
public:
  struct Shape {
    int64_t rows, columns, ldx, ldo; ///< strides in elements
  };
  static StatusOr<CudaConversion>
  prepare(CudaContext &context, qlora_dtype from, qlora_dtype to, Shape shape);
  Status enqueue(const void *x, void *out, const CudaKernelArgs &args) const;

private:
  explicit CudaConversion(CudaLaunch launch) : launch(launch) {}
  CudaLaunch launch;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDAKERNELS_H
