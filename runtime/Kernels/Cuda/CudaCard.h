// SPDX-License-Identifier: MIT

// One card of this machine and its primary context, in which all of a
// device's memory, streams and code live.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDACARD_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDACARD_H

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/Kernels/Cuda/CudaApi.h"

namespace qlora {

/// The oldest GPU that kernels are compiled for: 10 * major + minor.
inline constexpr uint32_t kOldestGpu = 80;

/// What a GPU is, as the driver says without a context on it.
struct GpuName {
  std::string name;  ///< "NVIDIA H100 80GB HBM3"
  uint32_t arch = 0; ///< 10 * major + minor
};

/// Returns how many GPUs this process sees: at least one. kNotFound: none.
StatusOr<int> countGpus(const CudaDriver &driver);

/// Whether a rank that takes GPU `ordinal` finds it among `count`.
Status checkGpu(int ordinal, int count);

/// Returns the GPUs that this process can train on, in the driver's order, up to
/// the first that is too old; at least one. kNotFound: there is no driver, or it
/// sees no GPU. Any other error: there is one, and the message says why it
/// cannot be used. Takes no memory of a GPU.
StatusOr<std::vector<GpuName>> visibleGpus();
StatusOr<std::vector<GpuName>> visibleGpus(const CudaDriver &driver);

/// "2 x NVIDIA H100 80GB HBM3, 1 x NVIDIA A100-SXM4-40GB".
std::string countedNames(std::span<const std::string> names);
std::string gpuText(std::span<const GpuName> gpus);

/// Bytes of a card's memory, whoever uses them.
struct CudaMemoryInfo {
  uint64_t free = 0;
  uint64_t total = 0;
};

/// Movable; holds the context, which is current on the thread that opened it.
class CudaCard {
public:
  CudaCard() = default;
  /// Card number `ordinal` of those that are visible. kNotFound: there is no
  /// card. kUnavailable: there is none with that number. `driver` outlives it.
  static StatusOr<CudaCard> open(const CudaDriver &driver, int ordinal);
  /// The same without a context, after cuInit: only its name and properties.
  static StatusOr<CudaCard> describe(const CudaDriver &driver, int ordinal);

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
