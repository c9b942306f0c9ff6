// SPDX-License-Identifier: MIT

// Small questions about a run.

#include "runtime/Session/Run.h"

#include "runtime/Base/ProcessMemory.h"
#include "runtime/Predict/TouchedMemory.h"

#include <cmath>
#include <optional>

namespace qlora {

int64_t Run::totalSteps() const {
  if (!train)
    return 0;
  if (int64_t steps = options.integer("max_steps"); steps > 0)
    return steps;
  double perEpoch = static_cast<double>(train->schedule().stepsPerEpoch(perStep()));
  return static_cast<int64_t>(
      std::ceil(options.number("num_train_epochs") * perEpoch));
}

uint64_t Run::plannedBytes() const {
  uint64_t bytes = 0;
  for (const qlora_arena &arena : module.arenas())
    if (arena.kind != QLORA_ARENA_HOST)
      bytes += arena.bytes;
  return bytes;
}

/// Of arenas and reserve; nothing where arenas are this process's memory.
static std::optional<uint64_t> deviceBytes(const Device &device) {
  const std::vector<ReserveUse> reserve = device.reserve();
  if (reserve.empty())
    return std::nullopt;
  uint64_t bytes = 0;
  for (const ReserveUse &use : reserve)
    bytes += use.bytes;
  for (const ArenaUse &use : device.memory())
    if (use.kind != QLORA_ARENA_HOST)
      bytes += use.allocatedBytes;
  return bytes;
}

uint64_t Run::memoryBytes() const {
  const auto bytes = deviceBytes(device);
  return bytes ? *bytes : readProcessMemory().residentBytes;
}

uint64_t Run::peakMemoryBytes() const {
  const auto bytes = deviceBytes(device);
  return bytes ? *bytes : readProcessMemory().peakBytes;
}

uint64_t Run::arenaBytes() const {
  return plannedBytes() + module.arenaBytes(QLORA_ARENA_HOST);
}

void Run::countUntouched() {
  if (processBytes == 0)
    return;
  TouchedMemory touched(module, group.rank());
  if (train)
    touched.addTraining(train->schedule(), stepShape(), totalSteps());
  if (validation)
    touched.addEvaluation(validation->schedule(), group.size());
  untouchedBytes = arenaBytes() - touched.bytes();
}

uint64_t Run::predictedPeakMemoryBytes() const {
  if (processBytes == 0)
    return 0;
  return qlora::predictedPeakBytes(arenaBytes() - untouchedBytes,
                                   processBytes);
}

StatusOr<std::span<const uint8_t>>
Run::trainedBytes(std::vector<uint8_t> &copy) const {
  const auto arena = module.arena(QLORA_ARENA_TRAINABLE);
  if (!arena)
    return std::span<const uint8_t>();
  if (device.hasHostArenas())
    return std::span<const uint8_t>(device.hostArena(*arena));
  copy.resize(module.arenaBytes(QLORA_ARENA_TRAINABLE));
  QLORA_RETURN_IF_ERROR(device.read(*arena, 0, copy));
  return std::span<const uint8_t>(copy);
}

} // namespace qlora
