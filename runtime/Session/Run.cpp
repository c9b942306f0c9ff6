// SPDX-License-Identifier: MIT

// Small questions about a run.

#include "runtime/Session/Run.h"

namespace qlora {

uint64_t Run::plannedBytes() const {
  uint64_t bytes = 0;
  for (const qlora_arena &arena : module.arenas())
    bytes += arena.bytes;
  return bytes;
}

StatusOr<std::vector<uint8_t>> Run::trainedBytes() const {
  std::vector<uint8_t> bytes(module.arenaBytes(QLORA_ARENA_TRAINABLE));
  if (auto arena = module.arena(QLORA_ARENA_TRAINABLE))
    QLORA_RETURN_IF_ERROR(device.read(*arena, 0, bytes));
  return bytes;
}

} // namespace qlora
