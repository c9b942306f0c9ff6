// SPDX-License-Identifier: MIT

// NVML as a table of functions: other processes on a GPU, its utilization and
// its power. The library comes with the driver. If it is missing, messages have
// less detail and metrics have no readings.
//
// A table lives as long as the process. Thread-safe after open().

#ifndef QLORA_RUNTIME_DEVICE_CUDA_NVMLAPI_H
#define QLORA_RUNTIME_DEVICE_CUDA_NVMLAPI_H

#include <optional>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Kernels/Cuda/CudaTypes.h"

namespace qlora {

/// libnvidia-ml.so.1, from driver 510 or later.
struct Nvml {
  /// Opens the library. Returns kUnavailable with a one-line message if the
  /// library is missing, lacks a function or does not start.
  static StatusOr<const Nvml *> open();
  /// Opens `file` as the library, and keeps it open. For tests.
  static StatusOr<Nvml> openFile(const char *file);

#define QLORA_NVML(Name, Symbol, Parameters) nvmlReturn_t(*Name) Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
};

struct GpuProcess {
  unsigned pid = 0;             ///< the host's pid, not a container's
  std::string name;             ///< program name; empty if unreadable
  std::optional<uint64_t> bytes; ///< device memory, if known
};

/// Returns the other processes that hold device memory of a GPU, largest first.
/// Empty if NVML lists none, as in most containers.
std::vector<GpuProcess> otherProcesses(const Nvml &nvml,
                                       const std::string &pciBusId);

/// Returns the GPU's utilization and power; a reading that NVML lacks is empty.
GpuReadings gpuReadings(const Nvml &nvml, const std::string &pciBusId);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_NVMLAPI_H
