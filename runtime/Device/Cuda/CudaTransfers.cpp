// SPDX-License-Identifier: MIT

// Copies through the pinned buffer, and manages the ring of results.

#include "runtime/Device/Cuda/CudaTransfers.h"

#include "runtime/Device/Device.h"

#include <algorithm>
#include <cstring>

namespace qlora {

/// Ranges of the buffer start at multiples of this many bytes.
static constexpr uint64_t kAlignment = 64;

Status CudaTransfers::create(const CudaDriver &theDriver, CudaQueues &theQueues,
                             uint64_t bufferBytes) {
  driver = &theDriver;
  queues = &theQueues;
  void *memory = nullptr;
  QLORA_RETURN_IF_ERROR(
      driver
          ->check(driver->memHostAlloc(&memory, bufferBytes, 0),
                  "cuMemHostAlloc")
          .withContext(
              fmt::format("{} bytes of pinned host memory", bufferBytes)));
  buffer = CudaHostMemory(*driver, memory);
  halfBytes = bufferBytes / taken.size() / kAlignment * kAlignment;
  for (CudaEvent &event : taken) {
    QLORA_ASSIGN_OR_RETURN(event, queues->newEvent());
  }
  return Status::ok();
}

StatusOr<std::span<uint8_t>> CudaTransfers::reserve(uint64_t bytes) {
  if (used == halfBytes) {
    QLORA_RETURN_IF_ERROR(queues->record(taken[half]));
    half = 1 - half;
    used = 0;
    QLORA_RETURN_IF_ERROR(queues->waitOnHost(taken[half]));
  }
  const uint64_t count = std::min(bytes, halfBytes - used);
  const std::span part(
      static_cast<uint8_t *>(buffer.get()) + half * halfBytes + used, count);
  used = std::min(halfBytes,
                  (used + count + kAlignment - 1) / kAlignment * kAlignment);
  return part;
}

Status CudaTransfers::write(CUdeviceptr to, std::span<const uint8_t> data) {
  while (!data.empty()) {
    QLORA_ASSIGN_OR_RETURN(std::span<uint8_t> part, reserve(data.size()));
    std::memcpy(part.data(), data.data(), part.size());
    QLORA_RETURN_IF_ERROR(
        driver->check(driver->memcpyHtoDAsync(to, part.data(), part.size(),
                                              queues->compute()),
                      "cuMemcpyHtoDAsync"));
    to += part.size();
    data = data.subspan(part.size());
  }
  return Status::ok();
}

Status CudaTransfers::read(CUdeviceptr from, std::span<uint8_t> data) {
  while (!data.empty()) {
    QLORA_ASSIGN_OR_RETURN(std::span<uint8_t> part, reserve(data.size()));
    QLORA_RETURN_IF_ERROR(
        driver->check(driver->memcpyDtoHAsync(part.data(), from, part.size(),
                                              queues->compute()),
                      "cuMemcpyDtoHAsync"));
    QLORA_RETURN_IF_ERROR(queues->synchronize());
    std::memcpy(data.data(), part.data(), part.size());
    from += part.size();
    data = data.subspan(part.size());
  }
  return Status::ok();
}

Status CudaReads::create(const CudaDriver &theDriver, CudaQueues &theQueues) {
  driver = &theDriver;
  queues = &theQueues;
  void *memory = nullptr;
  QLORA_RETURN_IF_ERROR(driver->check(
      driver->memHostAlloc(
          &memory, Device::kMaxStartedReads * Device::kMaxStartedBytes, 0),
      "cuMemHostAlloc"));
  buffer = CudaHostMemory(*driver, memory);
  for (size_t i = 0; i < Device::kMaxStartedReads; ++i) {
    QLORA_ASSIGN_OR_RETURN(arrived.emplace_back(), queues->newEvent());
  }
  return Status::ok();
}

uint8_t *CudaReads::place(size_t read) const {
  return static_cast<uint8_t *>(buffer.get()) +
         read % Device::kMaxStartedReads * Device::kMaxStartedBytes;
}

Status CudaReads::start(CUdeviceptr from, uint64_t bytes) {
  QLORA_RETURN_IF_ERROR(driver->check(
      driver->memcpyDtoHAsync(place(started), from, bytes, queues->compute()),
      "cuMemcpyDtoHAsync"));
  return queues->record(arrived[started++ % arrived.size()]);
}

Status CudaReads::finish(std::span<uint8_t> data) {
  QLORA_RETURN_IF_ERROR(queues->waitOnHost(arrived[finished % arrived.size()]));
  std::memcpy(data.data(), place(finished++), data.size());
  return Status::ok();
}

} // namespace qlora
