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
                         "no GPU {} for this rank: LOCAL_RANK is {} and the "
                         "machine shows {} to it, numbered from 0; show all "
                         "to each rank (CUDA_VISIBLE_DEVICES) or use --gpus "
                         "{}, since two ranks cannot share one",
                         ordinal, ordinal, count, count);
  CudaCard card;
  card.driver = &driver;
  card.ordinal = ordinal;
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.deviceGet(&card.device, ordinal), "cuDeviceGet"));
  QLORA_RETURN_IF_ERROR(card.readAttributes());
  QLORA_RETURN_IF_ERROR(
      driver
          .check(driver.primaryCtxRetain(&card.context, card.device),
                 "cuDevicePrimaryCtxRetain")
          .withContext(card.name));
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.ctxSetCurrent(card.context), "cuCtxSetCurrent"));
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

CudaCard::CudaCard(CudaCard &&other) noexcept
    : ordinal(other.ordinal), name(std::move(other.name)), arch(other.arch),
      multiprocessors(other.multiprocessors), driver(other.driver),
      device(other.device), context(std::exchange(other.context, nullptr)) {}

CudaCard &CudaCard::operator=(CudaCard &&other) noexcept {
  std::swap(ordinal, other.ordinal);
  std::swap(name, other.name);
  std::swap(arch, other.arch);
  std::swap(multiprocessors, other.multiprocessors);
  std::swap(driver, other.driver);
  std::swap(device, other.device);
  std::swap(context, other.context);
  return *this;
}

CudaCard::~CudaCard() {
  if (context)
    (void)driver->primaryCtxRelease(device);
}

} // namespace qlora
