// SPDX-License-Identifier: MIT

// What each row of Kernels.def has on CUDA: a function that prepares it, called
// by prepareCudaKernel with a request that the row accepted and a workspace of
// at least the size it promised. And what such functions are made of.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDAKERNELS_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDAKERNELS_H

#include <utility>

#include "runtime/Kernels/Cuda/CudaKernel.h"

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

struct CudaGrid {
  int64_t blocks;
  unsigned threads = 256;
};

/// A launch of one of our device functions (Device/*.cu), prepared once. A
/// copyable value; the context outlives it.
///
///   QLORA_ASSIGN_OR_RETURN(CudaLaunch sum,
///                          CudaLaunch::prepare(context, "qlora_column_sum_f32",
///                                              {.blocks = 256}, constants));
///   QLORA_RETURN_IF_ERROR(sum.enqueue(buffers, args));
class CudaLaunch {
public:
  /// kUnavailable where the images lack the symbol or the grid is too large.
  static StatusOr<CudaLaunch> prepare(CudaContext &context,
                                      std::string_view symbol, CudaGrid grid,
                                      std::span<const int64_t> constants);

  /// Puts it on the stream of `args`, with these buffers in their order.
  Status enqueue(std::span<void *const> buffers,
                 const CudaKernelArgs &args) const;

private:
  const CudaDriver *driver = nullptr;
  CUfunction function = nullptr;
  unsigned blocks = 0, threads = 0;
  qlora_cuda_args template_ = {}; ///< constants only
};

/// The smallest number of blocks of `each` that hold `count`.
constexpr int64_t blocksOf(int64_t count, int64_t each) {
  return count / each + (count % each != 0);
}

/// `base` moved by `bytes`; null stays null.
inline void *movedBy(void *base, uint64_t bytes) {
  return base ? static_cast<uint8_t *>(base) + bytes : nullptr;
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
