// SPDX-License-Identifier: MIT

// A launch of one of our device functions (Device/*.cu), prepared once:
//
//   QLORA_ASSIGN_OR_RETURN(
//       CudaLaunch sum, CudaLaunch::prepare(context,
//       "qlora_clip_norm_partials",
//                                           {.blocks = 256}, constants));
//   QLORA_RETURN_IF_ERROR(sum.enqueue(buffers, args));

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDALAUNCH_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDALAUNCH_H

#include "runtime/Kernels/Cuda/CudaKernel.h"

namespace qlora {

struct CudaGrid {
  int64_t blocks;
  unsigned threads = 256;
};

/// A copyable value; the context outlives it.
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

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDALAUNCH_H
