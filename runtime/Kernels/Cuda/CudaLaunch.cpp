// SPDX-License-Identifier: MIT

// Launches of our device functions.

#include "runtime/Kernels/Cuda/CudaLaunch.h"

#include <algorithm>
#include <cassert>

namespace qlora {

StatusOr<CudaLaunch> CudaLaunch::prepare(CudaContext &context,
                                         std::string_view symbol, CudaGrid grid,
                                         std::span<const int64_t> constants) {
  static constexpr int64_t kMostBlocks = (int64_t(1) << 31) - 1;
  assert(constants.size() <= QLORA_CUDA_MAX_CONSTANTS);
  if (grid.blocks < 1 || grid.blocks > kMostBlocks)
    return Status::error(StatusCode::kUnavailable,
                         "{} would need {} blocks; a grid has 1 to {}", symbol,
                         grid.blocks, kMostBlocks);
  CudaLaunch launch;
  launch.driver = &context.driver();
  QLORA_ASSIGN_OR_RETURN(launch.function, context.function(symbol));
  launch.blocks = static_cast<unsigned>(grid.blocks);
  launch.threads = grid.threads;
  std::copy(constants.begin(), constants.end(), launch.template_.constants);
  return launch;
}

Status CudaLaunch::enqueue(std::span<void *const> buffers,
                           const CudaKernelArgs &args) const {
  assert(buffers.size() <= QLORA_CUDA_MAX_OPERANDS);
  qlora_cuda_args values = template_;
  std::copy(buffers.begin(), buffers.end(), values.buffers);
  values.step = args.step;
  void *parameters[] = {&values};
  return driver->check(driver->launchKernel(function, blocks, 1, 1, threads, 1,
                                            1, 0, args.stream, parameters,
                                            nullptr),
                       "cuLaunchKernel");
}

} // namespace qlora
