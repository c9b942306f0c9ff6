// SPDX-License-Identifier: MIT

// What optimizers keep, of all ranks: the state arena as files have it.
//
// Where ranks divide the updates (ABI/module.h, `update_pieces`), each has a piece
// of every range of states, and a tensor may lie across two of them. The image is
// as many arenas as there are pieces, with each range in one place: of N pieces the
// range at `offset` begins at N x offset. Where nothing is divided it is the arena.
//
// A checkpoint has tensors, so a run may go on with another number of pieces.

#ifndef QLORA_RUNTIME_SESSION_STATEIMAGE_H
#define QLORA_RUNTIME_SESSION_STATEIMAGE_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

/// Where a parameter is in its arena, or, divided among `pieces`, in the image.
uint64_t imageOffset(const LoadedModule &module,
                     const qlora_parameter &parameter);

/// Bytes of an arena, or of its image.
uint64_t imageBytes(const LoadedModule &module, qlora_arena_kind kind);

/// The image, on rank 0; nothing on the others, and where nothing is divided. All
/// ranks call it, between entries.
StatusOr<std::vector<uint8_t>> gatherStates(const LoadedModule &module,
                                            Device &device, RankGroup &group);

/// An arena of each rank := its part of rank 0's image. All ranks call it.
Status shareImage(std::span<const uint8_t> image, const LoadedModule &module,
                  qlora_arena_kind kind, Device &device, RankGroup &group);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_STATEIMAGE_H
