// SPDX-License-Identifier: MIT

// Reads free memory from the GPU's driver or from /proc/meminfo.

#include "compiler/Search/MemoryLimit.h"

#include <algorithm>

#include "runtime/Base/HostMemory.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

namespace {
struct MemoryLimit {
  int64_t bytes = 0;
  std::string reason; ///< the memory, its free bytes, the reserve
};
} // namespace

/// Memory left free: the larger of kReserve bytes and 1 / share of the total.
/// On a GPU it is for code, graphs and libraries (the CUDA context exists
/// already). On a CPU it is for the process and the page cache of the weights.
static constexpr uint64_t kReserve = uint64_t{1} << 30;
static constexpr uint64_t kGpuReserveShare = 50, kMachineReserveShare = 8;

static double asGiB(uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

static StatusOr<MemoryLimit> limitOf(const std::string &what, uint64_t free,
                                     uint64_t total, uint64_t share,
                                     const char *reservedFor) {
  const uint64_t reserve = std::max(kReserve, total / share);
  if (free <= reserve)
    return Status::unavailable(
        "{} has {:.2f} of {:.2f} GiB free, but {:.2f} GiB are "
        "reserved for {}; set --memory-limit to a number",
        what, asGiB(free), asGiB(total), asGiB(reserve), reservedFor);
  const uint64_t limit = free - reserve;
  return MemoryLimit{
      static_cast<int64_t>(limit),
      fmt::format("memory limit: {:.2f} GiB: {} has {:.2f} of {:.2f} GiB free, "
                  "less {:.2f} GiB for {}",
                  asGiB(limit), what, asGiB(free), asGiB(total), asGiB(reserve),
                  reservedFor)};
}

static constexpr const char *kGpuReserve = "code, graphs and libraries";

static StatusOr<MemoryLimit> gpuLimit() {
  QLORA_ASSIGN_OR_RETURN(const CudaDriver *driver, CudaDriver::open());
  QLORA_ASSIGN_OR_RETURN(CudaGpu gpu, CudaGpu::open(*driver, 0));
  QLORA_ASSIGN_OR_RETURN(CudaMemoryInfo memory, gpu.memory());
  return limitOf(gpu.name, memory.free, memory.total, kGpuReserveShare,
                 kGpuReserve);
}

static StatusOr<MemoryLimit> machineLimit(int64_t ranks) {
  const uint64_t free = procBytes("/proc/meminfo", "MemAvailable");
  const uint64_t total = procBytes("/proc/meminfo", "MemTotal");
  if (!free || !total)
    return Status::unavailable("/proc/meminfo does not report free memory; set "
                               "--memory-limit to a number");
  QLORA_ASSIGN_OR_RETURN(MemoryLimit limit,
                         limitOf("this machine", free, total,
                                 kMachineReserveShare,
                                 "the process and the pages of weights"));
  limit.bytes /= ranks;
  limit.reason += ranks == 1 ? " (one rank)"
                             : fmt::format("; {:.2f} GiB for each of {} ranks",
                                           asGiB(limit.bytes), ranks);
  return limit;
}

/// Returns whether a search must fit this machine's memory. A search for CPU
/// layouts need not: all layouts take the same memory in total.
static bool fitsMachine(const PlanSettings &settings) {
  const bool hasLayouts = settings.findsLayout && settings.ranks > 1 &&
                          settings.compile.target == "cuda";
  return !settings.options.isGiven("memory_limit") &&
         (!settings.batches.empty() || hasLayouts);
}

/// Returns the free memory of the first visible GPU, or of this machine divided
/// by the ranks for a CPU. If a layout is chosen for a named GPU, which need
/// not be in this machine, returns its memory.
static StatusOr<MemoryLimit> availableMemory(const PlanSettings &settings) {
  const CompileOptions &c = settings.compile;
  if (c.target != "cuda")
    return machineLimit(settings.ranks);
  if (c.memoryLimit == kAutoSize || !settings.findsLayout ||
      c.deviceProfile.empty()) {
    auto limit = gpuLimit();
    if (limit.isOk())
      return limit;
    return limit.status().withContext(
        "--memory-limit auto measures this machine's GPU; without one, set the "
        "memory of the GPU that will run, such as 24GiB");
  }
  QLORA_ASSIGN_OR_RETURN(const DeviceProfile device,
                         deviceProfileOrDefault(c.deviceProfile, c.target));
  const auto bytes = static_cast<uint64_t>(device.gpu->memoryGb * 1e9);
  return limitOf(device.cpu, bytes, bytes, kGpuReserveShare, kGpuReserve);
}

StatusOr<std::string> resolveMemoryLimit(PlanSettings &settings) {
  if (settings.compile.memoryLimit != kAutoSize && !fitsMachine(settings))
    return std::string();
  QLORA_ASSIGN_OR_RETURN(MemoryLimit limit, availableMemory(settings));
  settings.compile.memoryLimit = limit.bytes;
  QLORA_RETURN_IF_ERROR(
      recordChoice("memory_limit", std::to_string(limit.bytes), settings));
  return limit.reason;
}

} // namespace qlora
