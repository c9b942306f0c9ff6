// SPDX-License-Identifier: MIT

// Three ways to the same memory.

#include "runtime/Device/FrozenArena.h"

namespace qlora {

StatusOr<FrozenArena> FrozenArena::anonymous(uint64_t bytes) {
  QLORA_ASSIGN_OR_RETURN(HostMemory memory, HostMemory::anonymous(bytes));
  return FrozenArena(std::move(memory), Kind::kPrivate);
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
  memory.populate();
  return FrozenArena(std::move(memory), Kind::kFilled);
}

} // namespace qlora
