// SPDX-License-Identifier: MIT

// Reads free memory from the GPU's driver or from /proc/meminfo.

#include "tools/qloracc/MemoryLimit.h"

#include <algorithm>

#include "runtime/Base/HostMemory.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"

namespace qlora {

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
                  asGiB(limit), what, asGiB(free), asGiB(total),
                  asGiB(reserve), reservedFor)};
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

StatusOr<MemoryLimit> machineMemoryLimit(const std::string &target,
                                         int64_t ranks) {
  if (target != "cuda")
    return machineLimit(ranks);
  auto limit = gpuLimit();
  if (limit.isOk())
    return limit;
  return limit.status().withContext(
      "--memory-limit auto measures this machine's GPU; without one, set the "
      "memory of the GPU that will run, such as 24GiB");
}

StatusOr<MemoryLimit> gpuMemoryLimit(const DeviceProfile &gpu) {
  const auto bytes = static_cast<uint64_t>(gpu.gpu->memoryGb * 1e9);
  return limitOf(gpu.cpu, bytes, bytes, kGpuReserveShare, kGpuReserve);
}

} // namespace qlora
