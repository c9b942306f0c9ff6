// SPDX-License-Identifier: MIT

// Finds the CPU code of a row of Kernels.def.

#include "runtime/Kernels/Cpu/CpuKernels.h"

namespace qlora {

using Prepare = PreparedKernel (*)(const KernelRequest &, uint64_t);

static Prepare findPrepare(std::string_view name) {
#define QLORA_KERNEL_cpu(Op, Implementation)                                   \
  if (name == #Op "." #Implementation)                                         \
    return cpu::Op::Implementation::prepare;
#include "runtime/Kernels/Kernels.def"
  return nullptr;
}

PreparedKernel prepareCpuKernel(const KernelRow &row,
                                const KernelRequest &request,
                                uint64_t workspaceBytes) {
  const Prepare prepare = findPrepare(row.fullName());
  if (!prepare)
    return Status::unavailable("{} has no CPU version", row.fullName());
  QLORA_RETURN_IF_ERROR(checkPrepared(row, request, workspaceBytes));
  return prepare(request, workspaceBytes);
}

} // namespace qlora
