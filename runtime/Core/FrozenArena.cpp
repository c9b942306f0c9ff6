// SPDX-License-Identifier: MIT

// A memfd is shared memory with no name: it ends with its last process.

#include "runtime/Core/FrozenArena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace qlora {

StatusOr<FrozenArena> FrozenArena::anonymous(uint64_t bytes) {
  QLORA_ASSIGN_OR_RETURN(HostMemory memory, HostMemory::anonymous(bytes));
  return FrozenArena(std::move(memory), Kind::kPrivate);
}

StatusOr<int> FrozenArena::createShared(uint64_t bytes) {
  const int descriptor = memfd_create("qlora-frozen", 0);
  if (descriptor < 0)
    return Status::error(StatusCode::kResourceExhausted,
                         "cannot create shared memory: {}",
                         std::strerror(errno));
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    Status status = Status::error(StatusCode::kResourceExhausted,
                                  "cannot get {} bytes of shared memory: {}",
                                  bytes, std::strerror(errno));
    close(descriptor);
    return status;
  }
  return descriptor;
}

StatusOr<FrozenArena> FrozenArena::fromDescriptor(int descriptor,
                                                  uint64_t bytes) {
  QLORA_ASSIGN_OR_RETURN(HostMemory memory,
                         HostMemory::shared(descriptor, bytes));
  return FrozenArena(std::move(memory), Kind::kShared);
}

StatusOr<FrozenArena> FrozenArena::filled(int descriptor, uint64_t bytes) {
  QLORA_ASSIGN_OR_RETURN(HostMemory memory,
                         HostMemory::readOnly(descriptor, bytes));
  return FrozenArena(std::move(memory), Kind::kFilled);
}

} // namespace qlora
