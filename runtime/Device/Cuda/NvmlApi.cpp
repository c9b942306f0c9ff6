// SPDX-License-Identifier: MIT

// Opens NVML, lists processes and reads sensors.

#include "runtime/Device/Cuda/NvmlApi.h"

#include "runtime/Kernels/Cuda/CudaApi.h"

#include <unistd.h>

#include <algorithm>
#include <map>

namespace qlora {

static constexpr const char *kNvmlFile = "libnvidia-ml.so.1";
/// Spare list entries, for processes that start between two calls.
static constexpr unsigned kSpare = 8;

StatusOr<Nvml> Nvml::openFile(const char *file) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return Status::unavailable("no NVML here: {}", dlerror());
  Nvml nvml{};
#define QLORA_NVML(Name, Symbol, Parameters)                                   \
  QLORA_RETURN_IF_ERROR(findSymbol(library, file, #Symbol, nvml.Name));
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
  if (const nvmlReturn_t result = nvml.init())
    return Status::unavailable("{}: nvmlInit fails with error {}", file,
                               result);
  return nvml;
}

StatusOr<const Nvml *> Nvml::open() {
  static const StatusOr<Nvml> nvml = openFile(kNvmlFile);
  QLORA_RETURN_IF_ERROR(nvml.status());
  return &nvml.value();
}

using ListProcesses = nvmlReturn_t (*)(nvmlDevice_t, unsigned *,
                                       nvmlProcessInfo_t *);

static std::vector<nvmlProcessInfo_t> listOf(ListProcesses list,
                                             nvmlDevice_t device) {
  unsigned count = 0;
  if (list(device, &count, nullptr) != kNvmlInsufficientSize)
    return {};
  std::vector<nvmlProcessInfo_t> processes(count + kSpare);
  count = static_cast<unsigned>(processes.size());
  if (list(device, &count, processes.data()) != 0)
    return {};
  processes.resize(std::min<size_t>(count, processes.size()));
  return processes;
}

/// Returns the program's file name without folder and arguments.
static std::string nameOf(const Nvml &nvml, unsigned pid) {
  char text[256] = {};
  if (nvml.processName(pid, text, sizeof text - 1) != 0)
    return "";
  std::string name = text;
  name.resize(std::min(name.find(' '), name.size()));
  return name.substr(name.rfind('/') + 1);
}

std::vector<GpuProcess> otherProcesses(const Nvml &nvml,
                                       const std::string &pciBusId) {
  nvmlDevice_t device = nullptr;
  if (nvml.deviceByPciBusId(pciBusId.c_str(), &device) != 0)
    return {};
  std::map<unsigned, GpuProcess> byPid; // a process may be in both lists
  for (const ListProcesses list : {nvml.computeProcesses,
                                   nvml.graphicsProcesses})
    for (const nvmlProcessInfo_t &info : listOf(list, device)) {
      GpuProcess &process = byPid[info.pid];
      process.pid = info.pid;
      if (info.usedGpuMemory != kNvmlUnknown)
        process.bytes = std::max<uint64_t>(process.bytes.value_or(0),
                                           info.usedGpuMemory);
    }
  byPid.erase(static_cast<unsigned>(getpid()));
  std::vector<GpuProcess> processes;
  for (auto &[pid, process] : byPid) {
    process.name = nameOf(nvml, pid);
    processes.push_back(std::move(process));
  }
  std::stable_sort(processes.begin(), processes.end(),
                   [](const GpuProcess &a, const GpuProcess &b) {
                     return a.bytes.value_or(0) > b.bytes.value_or(0);
                   });
  return processes;
}

GpuReadings gpuReadings(const Nvml &nvml, const std::string &pciBusId) {
  nvmlDevice_t device = nullptr;
  GpuReadings readings;
  if (nvml.deviceByPciBusId(pciBusId.c_str(), &device) != 0)
    return readings;
  nvmlUtilization_t utilization{};
  if (nvml.utilizationRates(device, &utilization) == 0)
    readings.utilization = utilization.gpu;
  unsigned milliwatts = 0;
  if (nvml.powerUsage(device, &milliwatts) == 0)
    readings.watts = milliwatts / 1000.0;
  return readings;
}

} // namespace qlora
