// SPDX-License-Identifier: MIT

// How the CUDA device runs a library kernel: prepare once at load, enqueue
// many times, also while a stream is captured into a graph. The counterpart
// of LibraryKernel.h; rows of Kernels.def with the target `cuda`.
//
// Device code of ours is in Kernels/Cuda/Device/*.cu, which the compiler puts
// into every train.so for CUDA; each file is one unit of the image table. Its
// functions take one qlora_cuda_args (ABI/kernel.h), like the generated ones.
//
// At the end: what the functions that prepare a row are made of. There is one
// for each row, called by prepareCudaKernel with a request that the row accepted
// and a workspace of at least the size it promised.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDAKERNEL_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDAKERNEL_H

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/Kernels/Cuda/GemmSelection.h"
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
  /// Each line of the micro-batch is one segment and then padding.
  bool hasOneSegment = false;
};

/// A prepared launch; used from the one thread of its device.
class CudaKernel {
public:
  virtual ~CudaKernel() = default;
  /// Puts its work on the stream. Allocates nothing and waits for nothing,
  /// unless there is an observer, whose blocks are read back at once.
  virtual Status enqueue(const CudaKernelArgs &args) = 0;
};

using PreparedCudaKernel = StatusOr<std::unique_ptr<CudaKernel>>;

/// Prepares `row` for `request`, with at most `workspaceBytes` of workspace.
/// A refusal (kUnavailable) makes the caller try the op's next row.
PreparedCudaKernel prepareCudaKernel(const KernelRow &row,
                                     const KernelRequest &request,
                                     uint64_t workspaceBytes,
                                     CudaContext &context);

// Rows ------------------------------------------------------------------------

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
  /// The same of a conversion or a decode.
  Status enqueue(const void *x, void *out, const CudaKernelArgs &args) const {
    void *const buffers[] = {const_cast<void *>(x), out};
    return enqueue(buffers, args);
  }

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

/// A kernel that is some launches, one after the other, of our functions of
/// these names and grids, with the op's own buffers and all with `constants`.
struct NamedGrid {
  std::string symbol;
  CudaGrid grid;
};
PreparedCudaKernel makeLaunchKernel(CudaContext &context,
                                    std::initializer_list<NamedGrid> launches,
                                    std::span<const int64_t> constants);

/// The extents of a conversion, and its row strides in elements.
struct ConversionShape {
  int64_t rows, columns, ldx, ldo;
};
/// out := x, elementwise, converted where the types differ: a launch with the
/// buffers (x, out).
StatusOr<CudaLaunch> prepareConversion(CudaContext &context, qlora_dtype from,
                                       qlora_dtype to, ConversionShape shape);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDAKERNEL_H
