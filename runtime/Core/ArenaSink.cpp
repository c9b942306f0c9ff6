// SPDX-License-Identifier: MIT

// The buffer before a device.

#include "runtime/Core/ArenaSink.h"

namespace qlora {

std::span<uint8_t> DeviceArena::map(uint64_t offset, uint64_t count) {
  if (buffer.size() < count)
    buffer.resize(count);
  mappedOffset = offset;
  mappedBytes = count;
  return std::span(buffer).first(count);
}

Status DeviceArena::commit() {
  return device.write(arena, mappedOffset,
                      std::span(buffer).first(mappedBytes));
}

std::unique_ptr<ArenaSink> openArena(Device &device, const LoadedModule &module,
                                     qlora_arena_kind kind) {
  const auto index = module.arena(kind);
  if (!index)
    return std::make_unique<HostArena>(std::span<uint8_t>());
  if (device.hasHostArenas())
    return std::make_unique<HostArena>(device.hostArena(*index));
  return std::make_unique<DeviceArena>(device, *index, module.arenaBytes(kind));
}

} // namespace qlora
