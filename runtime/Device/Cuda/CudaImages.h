// SPDX-License-Identifier: MIT

// The device code of a module on one card: of each unit the image that fits
// best, and functions by their symbol.
//
// What fits (ABI/module.h): a CUBIN of the card's major version and at most
// its minor version, the newest first; else PTX of at most its version, the
// newest first, which the driver compiles when it loads it.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAIMAGES_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAIMAGES_H

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Core/Status.h"
#include "runtime/Device/Cuda/CudaCard.h"
#include "runtime/Device/Cuda/CudaHandle.h"

namespace qlora {

/// The image of `unit` for a card of `arch`; nullptr when none fits.
const qlora_image *bestImage(std::span<const qlora_image> images, uint32_t unit,
                             uint32_t arch);

/// Used from the thread of its device, whose context is current.
class CudaImages {
public:
  /// Loads every unit. kUnavailable where the card has no image: the message
  /// says what the module has and which --cuda-arch to add. A unit that the
  /// driver has to compile is a remark.
  Status load(const CudaDriver &driver, std::span<const qlora_image> images,
              const CudaCard &card, std::vector<std::string> &remarks);

  /// The __global__ function of that name, in whichever unit; the same handle
  /// each time. kNotFound names it.
  StatusOr<CUfunction> function(std::string_view symbol);

private:
  const CudaDriver *driver = nullptr;
  std::vector<CudaModule> units;
  std::map<std::string, CUfunction, std::less<>> functions;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAIMAGES_H
