// SPDX-License-Identifier: MIT

// The ring of results.

#include "runtime/Device/Cuda/CudaReads.h"

#include <cstring>

#include "runtime/Device/Device.h"

namespace qlora {

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
  QLORA_RETURN_IF_ERROR(
      queues->waitOnHost(arrived[finished % arrived.size()]));
  std::memcpy(data.data(), place(finished++), data.size());
  return Status::ok();
}

} // namespace qlora
