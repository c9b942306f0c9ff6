// SPDX-License-Identifier: MIT

// One card of this machine and its primary context, in which all of a
// device's memory, streams and code live.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDACARD_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDACARD_H

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "runtime/Kernels/Cuda/CudaApi.h"

namespace qlora {

/// Bytes of a card's memory, whoever uses them.
struct CudaMemoryInfo {
  uint64_t free = 0;
  uint64_t total = 0;
};

/// Movable; holds the context, which is current on the thread that opened it.
class CudaCard {
public:
  CudaCard() = default;
  /// Card number `ordinal` of those that are visible. kUnavailable names what
  /// is missing: any card, or one with that number. `driver` outlives it.
  static StatusOr<CudaCard> open(const CudaDriver &driver, int ordinal);

  StatusOr<CudaMemoryInfo> memory() const;
  /// "0000:3B:00.0": how other libraries name it. Empty where it is not known.
  std::string pciBusId() const;

  int ordinal = 0;   ///< of those that are visible
  std::string name;  ///< "NVIDIA H100 80GB HBM3"
  uint32_t arch = 0; ///< 10 * major + minor
  int multiprocessors = 0;

private:
  Status readAttributes();

  struct Release {
    const CudaDriver *driver;
    CUdevice device;
    void operator()(CUcontext) const {
      (void)driver->primaryCtxRelease(device);
    }
  };

  const CudaDriver *driver = nullptr;
  CUdevice device = 0;
  std::unique_ptr<std::remove_pointer_t<CUcontext>, Release> context;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDACARD_H
