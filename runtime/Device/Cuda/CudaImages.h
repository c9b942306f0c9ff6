// SPDX-License-Identifier: MIT

// The device code of a module on one GPU: the best image of each unit.
//
// Choice of image (ABI/module.h): the newest cubin with the GPU's major version
// and at most its minor version. If there is none, the newest PTX of at most
// the GPU's version, which the driver compiles when it loads it.
//
// Versions. A driver runs the cubins of an nvcc with the same or an earlier
// major version, whatever the minor version. It compiles the PTX of an nvcc
// with at most the driver's version. The driver's version is the one that it
// reports, which NVIDIA's forward-compatibility packages raise.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAIMAGES_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAIMAGES_H

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Device/Cuda/CudaHandle.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Returns the image of `unit` for a GPU of `arch`; nullptr if none fits.
const qlora_image *bestImage(std::span<const qlora_image> images, uint32_t unit,
                             uint32_t arch);

/// Used from the thread of its device, whose context is current.
class CudaImages {
public:
  /// Loads every unit of the module. kUnavailable if no image fits the GPU (the
  /// message lists the images and the --cuda-arch to add), or if the driver is
  /// too old (it names the driver needed). Adds a remark if the driver compiles
  /// PTX.
  Status load(const CudaDriver &driver, const LoadedModule &module,
              const CudaGpu &gpu, std::vector<std::string> &remarks);

  /// Returns the __global__ function of that name from any unit, the same
  /// handle each time. kNotFound names the symbol.
  StatusOr<CUfunction> function(std::string_view symbol);

private:
  const CudaDriver *driver = nullptr;
  std::vector<CudaModule> units;
  std::map<std::string, CUfunction, std::less<>> functions;
};

// The kernels that the compiler generated, as functions of the loaded images.

class GeneratedKernels {
public:
  /// Finds each kernel by its symbol; an error names the kernel. `module` and
  /// `images` outlive this.
  Status prepare(const LoadedModule &module, CudaImages &images);

  /// Returns the number of generated kernels in the module.
  size_t count() const { return found; }

  /// Enqueues a launch on the stream. `buffers` are its operands' addresses;
  /// `step` is in device memory.
  Status launch(const CudaDriver &driver, const qlora_command &command,
                std::span<void *const> buffers, const qlora_step_block *step,
                CUstream stream) const;

private:
  const LoadedModule *module = nullptr;
  std::vector<CUfunction> functions; ///< per kernel; null for library kernels
  size_t found = 0;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAIMAGES_H
