// SPDX-License-Identifier: MIT

// From a row of Kernels.def to its CUDA code.

#include "runtime/Kernels/Cuda/CudaKernels.h"

namespace qlora {

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
    return Status::error(StatusCode::kUnavailable, "{} has no CUDA version",
                         row.fullName());
  QLORA_RETURN_IF_ERROR(checkPrepared(row, request, workspaceBytes));
  return prepare(request, context);
}

PreparedCudaKernel makeLaunchKernel(CudaContext &context,
                                    std::string_view symbol, CudaGrid grid,
                                    std::span<const int64_t> constants) {
  QLORA_ASSIGN_OR_RETURN(CudaLaunch launch,
                         CudaLaunch::prepare(context, symbol, grid, constants));
  return makeCudaKernel([launch](const CudaKernelArgs &args) {
    return launch.enqueue(args.buffers, args);
  });
}

} // namespace qlora
