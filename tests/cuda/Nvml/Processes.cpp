// SPDX-License-Identifier: MIT

// libnvidia-ml.so.1: the processes that a test puts on the GPUs (Settings.h).
// The caller allocates the lists, as with NVML. GPU c is 90 + c percent busy
// and draws 300 + c watts.

#include "tests/cuda/Driver/Settings.h"
#include "tests/cuda/Nvml/Codes.h"

#include "runtime/Kernels/Cuda/CudaTypes.h"

#include <fmt/format.h>

#include <vector>

namespace qlora {
extern "C" {
#define QLORA_NVML(Name, Symbol, Parameters) nvmlReturn_t Symbol Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
}

using namespace platform;

struct nvmlDevice_st {
  int gpu;
};

static bool isInitialized = false;

nvmlReturn_t nvmlInit_v2() {
  if (const int code = countAndInject("nvmlInit_v2"))
    return code;
  isInitialized = true;
  return kNvmlSuccess;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id,
                                              nvmlDevice_t *device) {
  if (const int code = countAndInject("nvmlDeviceGetHandleByPciBusId_v2"))
    return code;
  static std::vector<nvmlDevice_st> devices = [] {
    std::vector<nvmlDevice_st> all;
    for (size_t i = 0; i < settings().gpus.size(); ++i)
      all.push_back({int(i)});
    return all;
  }();
  if (!isInitialized)
    return kNvmlUninitialized;
  if (!id || !device)
    return kNvmlInvalidArgument;
  for (nvmlDevice_st &each : devices)
    if (pciBusIdOf(each.gpu) == id) {
      *device = &each;
      return kNvmlSuccess;
    }
  return kNvmlNotFound;
}

/// Lists a GPU's processes. The first process is in both lists: it computes and
/// draws graphics.
static nvmlReturn_t list(const char *symbol, nvmlDevice_t device, bool isAll,
                         unsigned *count, nvmlProcessInfo_t *infos) {
  if (const int code = countAndInject(symbol))
    return code;
  if (!isInitialized)
    return kNvmlUninitialized;
  if (!device || !count || (*count > 0 && !infos))
    return kNvmlInvalidArgument;
  std::vector<nvmlProcessInfo_t> found;
  for (const Process &process : settings().processes)
    if (process.gpu == device->gpu && (isAll || found.empty()))
      found.push_back({process.pid,
                       process.bytes ? process.bytes : kNvmlUnknown, ~0u, ~0u});
  const unsigned room = *count;
  *count = unsigned(found.size());
  if (room < found.size())
    return kNvmlInsufficientSize;
  std::copy(found.begin(), found.end(), infos);
  return kNvmlSuccess;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                     unsigned *count,
                                                     nvmlProcessInfo_t *infos) {
  return list("nvmlDeviceGetComputeRunningProcesses_v3", device, true, count,
              infos);
}

nvmlReturn_t
nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                         nvmlProcessInfo_t *infos) {
  return list("nvmlDeviceGetGraphicsRunningProcesses_v3", device, false, count,
              infos);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device,
                                           nvmlUtilization_t *rates) {
  if (const int code = countAndInject("nvmlDeviceGetUtilizationRates"))
    return code;
  if (!isInitialized)
    return kNvmlUninitialized;
  if (!device || !rates)
    return kNvmlInvalidArgument;
  *rates = {90u + unsigned(device->gpu), 40};
  return kNvmlSuccess;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *power) {
  if (const int code = countAndInject("nvmlDeviceGetPowerUsage"))
    return code;
  if (!isInitialized)
    return kNvmlUninitialized;
  if (!device || !power)
    return kNvmlInvalidArgument;
  *power = 1000 * (300 + unsigned(device->gpu));
  return kNvmlSuccess;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name,
                                      unsigned bytes) {
  if (const int code = countAndInject("nvmlSystemGetProcessName"))
    return code;
  if (!isInitialized)
    return kNvmlUninitialized;
  if (!name || bytes == 0)
    return kNvmlInvalidArgument;
  for (const Process &process : settings().processes) {
    if (process.pid != pid || process.name.empty())
      continue;
    const std::string text = "/usr/bin/" + process.name + " train.py";
    name[text.copy(name, bytes - 1)] = '\0';
    return kNvmlSuccess;
  }
  return kNvmlNotFound;
}

} // namespace qlora
