// SPDX-License-Identifier: MIT

// Declares, for each CPU row of Kernels.def, a function that prepares its
// kernel. prepareCpuKernel calls it with a request that the row accepted and a
// workspace of at least the row's workspaceBytes.

#ifndef QLORA_RUNTIME_KERNELS_CPU_CPUKERNELS_H
#define QLORA_RUNTIME_KERNELS_CPU_CPUKERNELS_H

#include <utility>

#include "runtime/Kernels/LibraryKernel.h"

namespace qlora {

using PreparedKernel = StatusOr<std::unique_ptr<LibraryKernel>>;

namespace cpu {
#define QLORA_KERNEL_cpu(Op, Implementation)                                   \
  namespace Op::Implementation {                                               \
  PreparedKernel prepare(const KernelRequest &request,                         \
                         uint64_t workspaceBytes);                             \
  }
#include "runtime/Kernels/Kernels.def"
} // namespace cpu

/// A kernel that is one function of its arguments.
template <typename Function> class FunctionKernel : public LibraryKernel {
public:
  explicit FunctionKernel(Function function) : function(std::move(function)) {}
  Status run(const LibraryKernelArgs &args) override { return function(args); }

private:
  Function function;
};

template <typename Function> PreparedKernel makeKernel(Function function) {
  return std::unique_ptr<LibraryKernel>(
      std::make_unique<FunctionKernel<Function>>(std::move(function)));
}

/// Returns buffer `index` as T*; null if it is absent.
template <typename T> T *bufferOf(const LibraryKernelArgs &args, size_t index) {
  return static_cast<T *>(args.buffers[index]);
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_CPUKERNELS_H
