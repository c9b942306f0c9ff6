// SPDX-License-Identifier: MIT

// Prepares adapter_matmul (Device/AdapterMatmul.cu).

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/CudaKernel.h"

namespace qlora::cuda {

/// Threads per block.
static constexpr int64_t kThreads = 256;
/// From this k on, a block computes an output. Below, a thread multiplies about
/// kOfThread elements.
static constexpr int64_t kLong = 1024, kOfThread = 4;

PreparedCudaKernel adapter_matmul::cuda::prepare(const KernelRequest &r,
                                                 CudaContext &context) {
  const int64_t m = r.constant("m"), n = r.constant("n"), k = r.constant("k");
  const bool isLong = k >= kLong;
  const int64_t lanes =
      isLong ? kThreads
             : std::min<int64_t>(32, static_cast<int64_t>(std::bit_ceil(
                                         static_cast<uint64_t>(
                                             blocksOf(k, kOfThread)))));
  std::vector<int64_t> constants = r.constants;
  constants.push_back(lanes);
  const std::string symbol = fmt::format(
      "qlora_adapter_matmul_{}_{}_{}", isLong ? "long" : "short",
      dtypeName(r.type("x")), dtypeName(r.type("y")));
  return makeLaunchKernel(
      context, {{symbol, {m * blocksOf(n, kThreads / lanes), kThreads}}},
      constants);
}

} // namespace qlora::cuda
