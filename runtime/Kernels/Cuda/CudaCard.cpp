// SPDX-License-Identifier: MIT

// Finding a card and asking what it is.

#include "runtime/Kernels/Cuda/CudaCard.h"

#include <utility>

namespace qlora {

static Status noCard() {
  return Status::error(StatusCode::kUnavailable,
                       "NVIDIA's driver sees no GPU; look at nvidia-smi and "
                       "CUDA_VISIBLE_DEVICES");
}

StatusOr<CudaCard> CudaCard::open(const CudaDriver &driver, int ordinal) {
  const CUresult started = driver.init(0);
  if (started == kCudaNoDevice)
    return noCard();
  QLORA_RETURN_IF_ERROR(driver.check(started, "cuInit"));
  int count = 0;
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.deviceGetCount(&count), "cuDeviceGetCount"));
  if (count == 0)
    return noCard();
  if (ordinal >= count)
    return Status::error(StatusCode::kUnavailable,
                         "no GPU {} for this rank: the machine shows {} to it, "
                         "numbered from 0, and LOCAL_RANK says which is its "
                         "own; show all to each rank (CUDA_VISIBLE_DEVICES), "
                         "start fewer ranks, or let several share a GPU "
                         "(--ranks-per-gpu)",
                         ordinal, count);
  CudaCard card;
  card.driver = &driver;
  card.ordinal = ordinal;
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.deviceGet(&card.device, ordinal), "cuDeviceGet"));
  QLORA_RETURN_IF_ERROR(card.readAttributes());
  CUcontext context = nullptr;
  QLORA_RETURN_IF_ERROR(
      driver
          .check(driver.primaryCtxRetain(&context, card.device),
                 "cuDevicePrimaryCtxRetain")
          .withContext(card.name));
  card.context = {context, {&driver, card.device}};
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.ctxSetCurrent(context), "cuCtxSetCurrent"));
  return card;
}

Status CudaCard::readAttributes() {
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

StatusOr<CudaMemoryInfo> CudaCard::memory() const {
  size_t free = 0;
  size_t total = 0;
  QLORA_RETURN_IF_ERROR(
      driver->check(driver->memGetInfo(&free, &total), "cuMemGetInfo"));
  return CudaMemoryInfo{free, total};
}

std::string CudaCard::pciBusId() const {
  char text[32] = {};
  const CUresult result =
      driver->deviceGetPciBusId(text, sizeof text - 1, device);
  return result == 0 ? text : "";
}

} // namespace qlora
