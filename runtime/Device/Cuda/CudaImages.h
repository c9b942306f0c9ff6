// SPDX-License-Identifier: MIT

// The device code of a module on one card: of each unit the image that fits
// best, and functions by their symbol.
//
// What fits (ABI/module.h): a CUBIN of the card's major version and at most
// its minor version, the newest first; else PTX of at most its version, the
// newest first, which the driver compiles when it loads it.
//
// What the driver runs goes by the version of the nvcc that made the images:
// drivers of the same or a later major version run its cubins, whatever the
// minor version; only drivers of its version or a later one compile its PTX.
// The driver's own number counts, which NVIDIA's packages for forward
// compatibility raise too.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAIMAGES_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAIMAGES_H

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Device/Cuda/CudaHandle.h"
#include "runtime/Kernels/Cuda/CudaCard.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// The image of `unit` for a card of `arch`; nullptr when none fits.
const qlora_image *bestImage(std::span<const qlora_image> images, uint32_t unit,
                             uint32_t arch);

/// Used from the thread of its device, whose context is current.
class CudaImages {
public:
  /// Loads every unit of the module. kUnavailable where the card has no image:
  /// the message says what the module has and which --cuda-arch to add; and
  /// where the driver is too old: which one is needed. A unit that the driver
  /// has to compile is a remark.
  Status load(const CudaDriver &driver, const LoadedModule &module,
              const CudaCard &card, std::vector<std::string> &remarks);

  /// The __global__ function of that name, in whichever unit; the same handle
  /// each time. kNotFound names it.
  StatusOr<CUfunction> function(std::string_view symbol);

private:
  const CudaDriver *driver = nullptr;
  std::vector<CudaModule> units;
  std::map<std::string, CUfunction, std::less<>> functions;
};

// The kernels that the compiler printed, as functions of the loaded images.

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

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAIMAGES_H
