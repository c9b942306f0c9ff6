// SPDX-License-Identifier: MIT

// What is trained, and what optimizers keep, of all ranks: an arena as files have
// it.
//
// Where ranks divide an arena (ABI/module.h, `update_pieces` and `trained_pieces`),
// each has a piece of every range of it, and a tensor may lie across two of them.
// The image has each range in one place, and what each rank has whole once. Where
// nothing is divided it is the arena.
//
// A checkpoint has tensors, so a run may go on with another number of pieces.

#ifndef QLORA_RUNTIME_SESSION_ARENAIMAGE_H
#define QLORA_RUNTIME_SESSION_ARENAIMAGE_H

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

class ArenaImage {
public:
  /// Of TRAINABLE or STATE; `module` outlives it.
  ArenaImage(const LoadedModule &module, qlora_arena_kind kind);

  /// Bytes of the arena, or of its image.
  uint64_t bytes() const { return size; }
  /// Where a parameter of the arena is in it.
  uint64_t offsetOf(const qlora_parameter &parameter) const;

  /// The image, on rank 0; nothing on the others, and where nothing is divided.
  /// All ranks call it, between entries.
  StatusOr<std::vector<uint8_t>> gather(Device &device, RankGroup &group) const;
  /// The arena of each rank := its part of rank 0's image. All ranks call it.
  Status share(std::span<const uint8_t> image, Device &device,
               RankGroup &group) const;

private:
  /// Bytes that `pieces` ranks have at one offset of the arena, or each the same
  /// (1).
  struct Range {
    uint64_t bytes = 0;
    uint32_t pieces = 1;
    uint64_t image = 0;
  };
  struct Window;
  std::vector<Window> windows() const;

  const LoadedModule &module;
  const uint32_t arena;
  std::map<uint64_t, Range> ranges; ///< by their offsets; none: not divided
  uint64_t size = 0;
};

/// What a checkpoint has, on rank 0, where it is not in the arenas there.
struct GatheredArenas {
  std::vector<uint8_t> trained, states;
  std::vector<uint8_t> residuals; ///< of all ranks (RankResiduals.h)

  /// All ranks call it, between entries.
  static StatusOr<GatheredArenas> of(const LoadedModule &module, Device &device,
                                     RankGroup &group);
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_ARENAIMAGE_H
