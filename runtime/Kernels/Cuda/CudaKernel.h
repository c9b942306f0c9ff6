// SPDX-License-Identifier: MIT

// Interface of library kernels on the CUDA device, for rows of Kernels.def with
// the target `cuda`. LibraryKernel.h is the CPU's interface. A kernel is
// prepared once at load, and enqueued many times, also during stream capture.
//
// This project's device code is in Kernels/Cuda/Device/*.cu. The compiler puts
// it into every train.so for CUDA; each file is one unit of the image table.
// Its functions take one qlora_cuda_args (ABI/kernel.h).
//
// Each row has a prepare() function. prepareCudaKernel calls it with a request
// that the row accepts, and with at least the workspace that the row needs.
// Helpers for prepare() are at the end of this file.

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

/// The resources of a device that kernels use. Outlives the kernels.
class CudaContext {
public:
  virtual ~CudaContext() = default;
  virtual const CudaDriver &driver() const = 0;
  virtual const CublasLt &blas() const = 0;
  virtual cublasLtHandle_t blasHandle() const = 0;
  /// Returns the device's cuDNN handle, created at the first call. Every call
  /// returns kUnavailable if there is no cuDNN.
  virtual StatusOr<const CudnnHandle *> cudnn() = 0;
  virtual int multiprocessors() const = 0;
  /// Returns the compute capability: 90 for 9.0.
  virtual uint32_t arch() const = 0;
  /// Returns a __global__ function of the loaded images by its symbol.
  virtual StatusOr<CUfunction> function(std::string_view symbol) = 0;

  /// Algorithms of all GEMMs that are prepared with this context.
  GemmSelection gemms;
};

struct CudaKernelArgs {
  std::span<void *const> buffers; ///< device addresses; null when absent
  const qlora_step_block *step = nullptr; ///< a device address
  CUstream stream = nullptr;
  KernelObserver *observer = nullptr; ///< set only outside of a capture
  /// Upper bound of the number of labelled rows in the micro-batch.
  int64_t labelledRows = INT64_MAX;
  /// Whether each sequence of the micro-batch is one segment plus padding.
  bool hasOneSegment = false;
};

/// A prepared launch. Only its device's one thread may use it.
class CudaKernel {
public:
  virtual ~CudaKernel() = default;
  /// Enqueues the work on the stream. Does not allocate. Does not wait, except
  /// to read logits back for an observer.
  virtual Status enqueue(const CudaKernelArgs &args) = 0;
};

using PreparedCudaKernel = StatusOr<std::unique_ptr<CudaKernel>>;

/// Prepares `row` for `request` with at most `workspaceBytes` of workspace.
/// After kUnavailable the caller tries the op's next row.
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

/// A kernel implemented by one callable.
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

/// A launch of one of this project's device functions (Device/*.cu), prepared
/// once. Copyable. The context must outlive it.
///
///   QLORA_ASSIGN_OR_RETURN(
///       CudaLaunch sum,
///       CudaLaunch::prepare(context, "qlora_column_sum_f32", {.blocks = 256},
///                           constants));
///   QLORA_RETURN_IF_ERROR(sum.enqueue(buffers, args));
class CudaLaunch {
public:
  /// Fails with kUnavailable if the symbol is missing or the grid too large.
  static StatusOr<CudaLaunch> prepare(CudaContext &context,
                                      std::string_view symbol, CudaGrid grid,
                                      std::span<const int64_t> constants);

  /// Enqueues the launch on the stream of `args` with these buffers, in order.
  Status enqueue(std::span<void *const> buffers,
                 const CudaKernelArgs &args) const;
  /// Enqueues a launch whose buffers are (x, out): a conversion or a decode.
  Status enqueue(const void *x, void *out, const CudaKernelArgs &args) const {
    void *const buffers[] = {const_cast<void *>(x), out};
    return enqueue(buffers, args);
  }

private:
  const CudaDriver *driver = nullptr;
  CUfunction function = nullptr;
  unsigned blocks = 0, threads = 0;
  qlora_cuda_args template_ = {}; ///< has constants, but no buffers
};

/// Returns how many blocks of `each` elements hold `count` elements.
constexpr int64_t blocksOf(int64_t count, int64_t each) {
  return count / each + (count % each != 0);
}

/// Returns `base` + `bytes`; null if `base` is null.
inline void *movedBy(void *base, uint64_t bytes) {
  return base ? static_cast<uint8_t *>(base) + bytes : nullptr;
}

/// A device function's symbol and grid. The kernel of makeLaunchKernel enqueues
/// all its launches in order, with the same buffers and constants.
struct NamedGrid {
  std::string symbol;
  CudaGrid grid;
};
PreparedCudaKernel makeLaunchKernel(CudaContext &context,
                                    std::initializer_list<NamedGrid> launches,
                                    std::span<const int64_t> constants);
/// Returns the symbol of an op's device function: the op's name and the types
/// of `operands`, such as "qlora_embedding_bf16_f32".
std::string symbolOf(const KernelRequest &request,
                     std::initializer_list<std::string_view> operands);
/// Prepares one launch of symbolOf(), with the op's buffers and constants.
PreparedCudaKernel
makeOpKernel(const KernelRequest &request,
             std::initializer_list<std::string_view> operands, int64_t blocks,
             CudaContext &context);

/// Extents of a conversion, and its operands' row strides in elements.
struct ConversionShape {
  int64_t rows, columns, ldx, ldo;
};
/// Prepares out := x, elementwise, converted if the types differ. The launch
/// takes the buffers (x, out).
StatusOr<CudaLaunch> prepareConversion(CudaContext &context, qlora_dtype from,
                                       qlora_dtype to, ConversionShape shape);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDAKERNEL_H
