// SPDX-License-Identifier: MIT

// Prepares the kernel of a row of Kernels.def; launches device functions.

#include "runtime/Kernels/Cuda/CudaKernel.h"

#include <algorithm>
#include <cassert>

namespace qlora {

StatusOr<CudaLaunch> CudaLaunch::prepare(CudaContext &context,
                                         std::string_view symbol, CudaGrid grid,
                                         std::span<const int64_t> constants) {
  static constexpr int64_t kMostBlocks = (int64_t(1) << 31) - 1;
  assert(constants.size() <= QLORA_CUDA_MAX_CONSTANTS);
  if (grid.blocks < 1 || grid.blocks > kMostBlocks)
    return Status::unavailable("{} would need {} blocks; a grid has 1 to {}",
                               symbol, grid.blocks, kMostBlocks);
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

using Prepare = PreparedCudaKernel (*)(const KernelRequest &, CudaContext &);

static Prepare findPrepare(std::string_view name) {
#define QLORA_KERNEL_cuda(Op, Implementation)                                  \
  if (name == #Op "." #Implementation)                                         \
    return cuda::Op::Implementation::prepare;
#include "runtime/Kernels/Kernels.def"
  return nullptr;
}

PreparedCudaKernel prepareCudaKernel(const KernelRow &row,
                                     const KernelRequest &request,
                                     uint64_t workspaceBytes,
                                     CudaContext &context) {
  const Prepare prepare = findPrepare(row.fullName());
  if (!prepare)
    return Status::unavailable("{} has no CUDA version", row.fullName());
  QLORA_RETURN_IF_ERROR(checkPrepared(row, request, workspaceBytes));
  return prepare(request, context);
}

PreparedCudaKernel makeLaunchKernel(CudaContext &context,
                                    std::initializer_list<NamedGrid> launches,
                                    std::span<const int64_t> constants) {
  std::vector<CudaLaunch> prepared;
  for (const auto &[symbol, grid] : launches) {
    QLORA_ASSIGN_OR_RETURN(
        prepared.emplace_back(),
        CudaLaunch::prepare(context, symbol, grid, constants));
  }
  return makeCudaKernel([prepared](const CudaKernelArgs &args) -> Status {
    for (const CudaLaunch &launch : prepared)
      QLORA_RETURN_IF_ERROR(launch.enqueue(args.buffers, args));
    return Status::ok();
  });
}

std::string symbolOf(const KernelRequest &request,
                     std::initializer_list<std::string_view> operands) {
  std::string symbol = "qlora_" + request.op->name;
  for (std::string_view operand : operands)
    symbol.append("_").append(dtypeName(request.type(operand)));
  return symbol;
}

PreparedCudaKernel
makeOpKernel(const KernelRequest &request,
             std::initializer_list<std::string_view> operands, int64_t blocks,
             CudaContext &context) {
  return makeLaunchKernel(context, {{symbolOf(request, operands), {blocks}}},
                          request.constants);
}

} // namespace qlora
