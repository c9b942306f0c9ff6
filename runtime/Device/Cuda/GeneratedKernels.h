// SPDX-License-Identifier: MIT

// The kernels that the compiler printed, as functions of the loaded images.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_GENERATEDKERNELS_H
#define QLORA_RUNTIME_DEVICE_CUDA_GENERATEDKERNELS_H

#include <span>
#include <vector>

#include "runtime/Device/Cuda/CudaImages.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

class GeneratedKernels {
public:
  /// Finds each by its symbol; an error names the kernel. `module` and
  /// `images` outlive this.
  Status prepare(const LoadedModule &module, CudaImages &images);

  /// How many kernels of the module are generated.
  size_t count() const { return found; }

  /// Puts a launch of one onto the stream. `buffers` are its operands'
  /// addresses; `step` is in device memory.
  Status launch(const CudaDriver &driver, const qlora_command &command,
                std::span<void *const> buffers, const qlora_step_block *step,
                CUstream stream) const;

private:
  const LoadedModule *module = nullptr;
  std::vector<CUfunction> functions; ///< per kernel; null for library ones
  size_t found = 0;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_GENERATEDKERNELS_H
