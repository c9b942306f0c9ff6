// SPDX-License-Identifier: MIT

// A plan for each kind of card: several programs of one training, compiled with
// other memory limits, of which each rank takes the one that its card has room
// for.
//
//   qloracc model.mlir -o 80.so --memory-limit 78GiB ...
//   qloracc model.mlir -o 24.so --memory-limit 22GiB ...
//   qlora-run 80.so 24.so --gpus 4
//
// That they are of one training is known when ranks meet (SameOnRanks.h).

#ifndef QLORA_RUNTIME_SESSION_PROGRAMCHOICE_H
#define QLORA_RUNTIME_SESSION_PROGRAMCHOICE_H

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankEnvironment.h"

namespace qlora {

/// Of plans of so many bytes the largest that `free` has room for; else the
/// smallest, for whose plan the device then says what is missing.
size_t largestThatFits(std::span<const uint64_t> planned, uint64_t free);

/// Bytes of a GPU's memory that this rank's plan needs.
uint64_t plannedOnGpu(const LoadedModule &module);

/// One of `programs`, for this rank's card, or for its part of one that ranks
/// share. More than one are refused for CPUs, whose ranks have one memory.
StatusOr<std::string> chooseProgram(const std::vector<std::string> &programs,
                                    const RankEnvironment &env,
                                    int ranksPerGpu);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_PROGRAMCHOICE_H
