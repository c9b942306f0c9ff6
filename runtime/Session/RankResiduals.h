// SPDX-License-Identifier: MIT

// What sums in fewer bits have left of each rank's gradients (RESIDUAL), in the
// files of a checkpoint.
//
//   residuals.safetensors      NAME [ranks, ...]: of each trained tensor that of
//                              every rank, in the order of ranks
//
// A run on as many ranks goes on with the same bytes. On fewer, rank r takes what
// the ranks r, r + N, ... had; on more, those beyond begin with none: what all
// ranks have left adds up to the same.

#ifndef QLORA_RUNTIME_SESSION_RANKRESIDUALS_H
#define QLORA_RUNTIME_SESSION_RANKRESIDUALS_H

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

inline constexpr const char *kResidualsFile = "residuals.safetensors";

/// Those of all ranks on rank 0, tensor after tensor; nothing on the others, and
/// where a module has none. All ranks call it, between entries.
StatusOr<std::vector<uint8_t>> gatherResiduals(const LoadedModule &module,
                                               Device &device,
                                               RankGroup &group);

/// The tensors of that file, in `image`, which is of so many ranks.
std::vector<SafetensorsItem> residualItems(const LoadedModule &module,
                                           int64_t ranks,
                                           std::span<const uint8_t> image);

/// One of an earlier version has none.
bool hasResiduals(const std::string &checkpoint);

/// RESIDUAL := what is this rank's of a checkpoint's, where the module has it, or
/// zeros where that has none. All ranks call it. An error names the file, the tensor and both shapes.
Status restoreResiduals(const std::string &checkpoint,
                        const LoadedModule &module, Device &device,
                        RankGroup &group);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RANKRESIDUALS_H
