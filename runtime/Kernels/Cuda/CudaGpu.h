// SPDX-License-Identifier: MIT

// A GPU of this machine and its primary context, which holds the device memory,
// streams and code of this process.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDAGPU_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDAGPU_H

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/Kernels/Cuda/CudaApi.h"

namespace qlora {

/// Compute capability of the oldest supported GPU: 10 * major + minor.
inline constexpr uint32_t kOldestGpu = 80;

/// Name and architecture of a GPU, queried without a context.
struct GpuName {
  std::string name;  ///< "NVIDIA H100 80GB HBM3"
  uint32_t arch = 0; ///< 10 * major + minor
};

/// Returns the number of GPUs that this process sees; kNotFound if none.
StatusOr<int> countGpus(const CudaDriver &driver);

/// Checks that `ordinal`, a rank's GPU, is below the `count` of visible GPUs.
Status checkGpu(int ordinal, int count);

/// Returns at least one usable GPU, in the driver's order; stops before the
/// first GPU that is too old. Returns kNotFound without a driver or a visible
/// GPU. Any other error says why a GPU is unusable. Uses no GPU memory.
StatusOr<std::vector<GpuName>> visibleGpus();
StatusOr<std::vector<GpuName>> visibleGpus(const CudaDriver &driver);

/// Return texts like "2 x NVIDIA H100 80GB HBM3, 1 x NVIDIA A100-SXM4-40GB".
std::string countedNames(std::span<const std::string> names);
std::string gpuText(std::span<const GpuName> gpus);

/// Bytes of GPU memory, over all processes.
struct CudaMemoryInfo {
  uint64_t free = 0;
  uint64_t total = 0;
};

/// Owns the GPU's context, which is current on the opening thread. Movable.
class CudaGpu {
public:
  CudaGpu() = default;
  /// Opens visible GPU `ordinal`. Returns kNotFound if there is no GPU, and
  /// kUnavailable if none has this index. `driver` must outlive the result.
  static StatusOr<CudaGpu> open(const CudaDriver &driver, int ordinal);
  /// Reads only the name and properties of GPU `ordinal`, without creating a
  /// context. The driver must be initialized (cuInit).
  static StatusOr<CudaGpu> describe(const CudaDriver &driver, int ordinal);

  StatusOr<CudaMemoryInfo> memory() const;
  /// Returns the PCI address, such as "0000:3B:00.0"; empty if unknown.
  std::string pciBusId() const;

  int ordinal = 0;   ///< index among the visible GPUs
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

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDAGPU_H
