// SPDX-License-Identifier: MIT

// What each row of Kernels.def has on the CPU: a function that prepares it,
// called by prepareCpuKernel with a request that the row accepted and a
// workspace of at least the size it promised.

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

/// A kernel that is one function of its buffers.
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

/// Buffer `index` as T; null when absent.
template <typename T> T *bufferOf(const LibraryKernelArgs &args, size_t index) {
  return static_cast<T *>(args.buffers[index]);
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_CPUKERNELS_H
