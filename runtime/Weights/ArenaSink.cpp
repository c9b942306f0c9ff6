// SPDX-License-Identifier: MIT

// Writes to arenas on the host or on a device, and quantizes weights there.

#include "runtime/Weights/ArenaSink.h"

#include "runtime/Kernels/Cpu/QuantizeTensor.h"

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

StatusOr<std::span<uint8_t>> ArenaSink::window(uint64_t count) {
  if (windowMemory.bytes().size() < count) {
    QLORA_ASSIGN_OR_RETURN(windowMemory, HostMemory::anonymous(count));
  }
  return windowMemory.bytes();
}

Status ArenaSink::quantize(const UnquantizedWeight &weight) {
  return quantizeOnHost(weight, *this);
}

Status DeviceArena::quantize(const UnquantizedWeight &weight) {
  if (!hasDeviceQuantizer(weight.layout.dtype))
    return ArenaSink::quantize(weight);
  const uint64_t needed = leastScratch(weight);
  if (needed <= scratch.bytes)
    return quantizeOnDevice(weight, device, arena, scratch, *this)
        .withContext(fmt::format("weight '{}'", weight.name));
  if (!hasRemarked)
    device.addRemark(
        fmt::format("'{}' is quantized on the host: the device would need {} "
                    "bytes of scratch memory, but the plan has {}",
                    weight.name, needed, scratch.bytes));
  hasRemarked = true;
  return ArenaSink::quantize(weight);
}

std::unique_ptr<ArenaSink> openArena(Device &device, const LoadedModule &module,
                                     qlora_arena_kind kind) {
  const auto index = module.arena(kind);
  if (!index)
    return std::make_unique<HostArena>(std::span<uint8_t>());
  if (device.traits.hasHostArenas)
    return std::make_unique<HostArena>(device.hostArena(*index));
  return std::make_unique<DeviceArena>(device, *index, module.arenaBytes(kind),
                                       loadingScratch(module));
}

} // namespace qlora
