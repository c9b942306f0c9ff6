// SPDX-License-Identifier: MIT

// Opens a GPU and reads its properties.

#include "runtime/Kernels/Cuda/CudaGpu.h"

#include <algorithm>
#include <utility>

namespace qlora {

static Status noGpu() {
  return Status::notFound("NVIDIA's driver sees no GPU; look at nvidia-smi and "
                          "CUDA_VISIBLE_DEVICES");
}

StatusOr<int> countGpus(const CudaDriver &driver) {
  const CUresult started = driver.init(0);
  if (started == kCudaNoDevice)
    return noGpu();
  QLORA_RETURN_IF_ERROR(driver.check(started, "cuInit"));
  int count = 0;
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.deviceGetCount(&count), "cuDeviceGetCount"));
  return count == 0 ? StatusOr<int>(noGpu()) : count;
}

Status checkGpu(int ordinal, int count) {
  if (ordinal < count)
    return Status::ok();
  return Status::unavailable(
      "no GPU {} for this rank: it sees {}, numbered from 0; "
      "show all GPUs to each rank (CUDA_VISIBLE_DEVICES), "
      "start fewer ranks, or share GPUs (--ranks-per-gpu)",
      ordinal, count);
}

StatusOr<std::vector<GpuName>> visibleGpus() {
  QLORA_ASSIGN_OR_RETURN(const CudaDriver *driver, CudaDriver::open());
  return visibleGpus(*driver);
}

StatusOr<std::vector<GpuName>> visibleGpus(const CudaDriver &driver) {
  QLORA_ASSIGN_OR_RETURN(const int count, countGpus(driver));
  std::vector<GpuName> gpus;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    QLORA_ASSIGN_OR_RETURN(const CudaGpu gpu,
                           CudaGpu::describe(driver, ordinal));
    if (gpu.arch >= kOldestGpu)
      gpus.push_back({gpu.name, gpu.arch});
    else if (gpus.empty())
      return Status::unavailable(
          "{} is sm_{}, and sm_{} or later is needed; choose "
          "another GPU with CUDA_VISIBLE_DEVICES",
          gpu.name, gpu.arch, kOldestGpu);
    else
      break;
  }
  return gpus;
}

std::string countedNames(std::span<const std::string> names) {
  std::vector<std::pair<std::string, int>> kinds; // in order of first use
  for (const std::string &name : names) {
    const auto same = std::ranges::find(
        kinds, name, &std::pair<std::string, int>::first);
    if (same == kinds.end())
      kinds.emplace_back(name, 1);
    else
      ++same->second;
  }
  std::string text;
  for (const auto &[name, count] : kinds)
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, name);
  return text;
}

std::string gpuText(std::span<const GpuName> gpus) {
  std::vector<std::string> names;
  for (const GpuName &gpu : gpus)
    names.push_back(gpu.name);
  return countedNames(names);
}

StatusOr<CudaGpu> CudaGpu::describe(const CudaDriver &driver, int ordinal) {
  CudaGpu gpu;
  gpu.driver = &driver;
  gpu.ordinal = ordinal;
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.deviceGet(&gpu.device, ordinal), "cuDeviceGet"));
  QLORA_RETURN_IF_ERROR(gpu.readAttributes());
  return gpu;
}

StatusOr<CudaGpu> CudaGpu::open(const CudaDriver &driver, int ordinal) {
  QLORA_ASSIGN_OR_RETURN(const int count, countGpus(driver));
  QLORA_RETURN_IF_ERROR(checkGpu(ordinal, count));
  QLORA_ASSIGN_OR_RETURN(CudaGpu gpu, describe(driver, ordinal));
  CUcontext context = nullptr;
  QLORA_RETURN_IF_ERROR(
      driver
          .check(driver.primaryCtxRetain(&context, gpu.device),
                 "cuDevicePrimaryCtxRetain")
          .withContext(gpu.name));
  gpu.context = {context, {&driver, gpu.device}};
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.ctxSetCurrent(context), "cuCtxSetCurrent"));
  return gpu;
}

Status CudaGpu::readAttributes() {
  char text[256] = {};
  QLORA_RETURN_IF_ERROR(driver->check(
      driver->deviceGetName(text, sizeof text - 1, device), "cuDeviceGetName"));
  name = text;
  int major = 0;
  int minor = 0;
  for (const auto &[value, attribute] :
       {std::pair{&major, kCudaAttributeMajor},
        std::pair{&minor, kCudaAttributeMinor},
        std::pair{&multiprocessors, kCudaAttributeMultiprocessors}})
    QLORA_RETURN_IF_ERROR(
        driver->check(driver->deviceGetAttribute(value, attribute, device),
                      "cuDeviceGetAttribute"));
  arch = static_cast<uint32_t>(10 * major + minor);
  return Status::ok();
}

StatusOr<CudaMemoryInfo> CudaGpu::memory() const {
  size_t free = 0;
  size_t total = 0;
  QLORA_RETURN_IF_ERROR(
      driver->check(driver->memGetInfo(&free, &total), "cuMemGetInfo"));
  return CudaMemoryInfo{free, total};
}

std::string CudaGpu::pciBusId() const {
  char text[32] = {};
  const CUresult result =
      driver->deviceGetPciBusId(text, sizeof text - 1, device);
  return result == 0 ? text : "";
}

} // namespace qlora
