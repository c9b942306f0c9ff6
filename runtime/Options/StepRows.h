// SPDX-License-Identifier: MIT

// Sizes of an optimizer step:
//
//   --global-batch-size = --per-device-train-batch-size
//                         x --gradient-accumulation-steps x ranks
//
// The global batch size affects the training result (learning rates depend on
// it). The other values fit it to a machine. If a user gives the global batch
// size, qlora computes the accumulation. Otherwise the product is the size.

#ifndef QLORA_RUNTIME_OPTIONS_STEPROWS_H
#define QLORA_RUNTIME_OPTIONS_STEPROWS_H

#include <vector>

#include "runtime/Options/Options.h"

namespace qlora {

/// Returns the micro-batches of a step on each of `ranks` ranks. Fails if the
/// global batch size is not divisible, or contradicts accumulation steps from
/// the same layer (Options.h). If the global batch size is from a later layer,
/// it overrides the accumulation steps.
StatusOr<int64_t> accumulationSteps(const Options &options, int64_t ranks);

/// Whether the user gave --gradient-accumulation-steps and no later layer
/// overrides it with a global batch size. A recorded 1 counts as not given.
bool isAccumulationGiven(const Options &options);

/// Returns the batch sizes that --auto-find-batch-size tries, ascending, up to
/// --per-device-train-batch-size or else kMostFound. If a global batch size is
/// given, returns the divisors of a rank's rows. Otherwise halves the maximum
/// repeatedly, rounding down, as in Accelerate.
StatusOr<std::vector<int64_t>> batchCandidates(const Options &options,
                                               int64_t ranks);
inline constexpr int64_t kMostFound = 64;

/// Returns "4 rows x 2 ranks x 8 accumulated = 64 rows a step".
std::string stepRowsText(int64_t batch, int64_t ranks, int64_t accumulation);

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_STEPROWS_H
