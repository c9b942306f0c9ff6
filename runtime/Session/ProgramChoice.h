// SPDX-License-Identifier: MIT

// Selects one of several programs of the same training, compiled with different
// memory limits, according to the free memory of each rank's GPU.
//
//   qloracc model.mlir -o 80.so --memory-limit 78GiB ...
//   qloracc model.mlir -o 24.so --memory-limit 22GiB ...
//   qlora-run 80.so 24.so --gpus 4
//
// Ranks compare their programs when they meet (RankConsistencyCheck.h).

#ifndef QLORA_RUNTIME_SESSION_PROGRAMCHOICE_H
#define QLORA_RUNTIME_SESSION_PROGRAMCHOICE_H

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankEnvironment.h"

namespace qlora {

/// Returns the index of the largest plan that fits into `free` bytes. If no
/// plan fits, returns the smallest, for which the device reports an error.
size_t largestThatFits(std::span<const uint64_t> planned, uint64_t free);

/// Returns the bytes of GPU memory that this rank's plan needs.
uint64_t plannedOnGpu(const LoadedModule &module);

/// Returns one of `programs` for this rank's GPU, or its fraction of a shared
/// GPU. Refuses several programs on CPUs, whose ranks share one memory.
StatusOr<std::string> chooseProgram(const std::vector<std::string> &programs,
                                    const RankEnvironment &env,
                                    int ranksPerGpu);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_PROGRAMCHOICE_H
