// SPDX-License-Identifier: MIT

// Sizes of an optimizer step:
//
//   --global-batch-size = --per-device-train-batch-size
//                         x --gradient-accumulation-steps x ranks
//
// The global batch size defines the training (learning rates depend on it); the
// other values fit it to a machine. A user may give the global size and leave
// the others to the program, or give the others, which determine it.

#ifndef QLORA_RUNTIME_BASE_STEPROWS_H
#define QLORA_RUNTIME_BASE_STEPROWS_H

#include <vector>

#include "runtime/Base/Options.h"

namespace qlora {

/// Returns the micro-batches of a step on each of `ranks` ranks. An error names
/// the nearest possible global batch sizes, or both options' values if
/// --gradient-accumulation-steps contradicts. A global batch size from a later
/// layer (Options.h) overrides the accumulation steps of an earlier layer.
StatusOr<int64_t> accumulationSteps(const Options &options, int64_t ranks);

/// Whether the user gave --gradient-accumulation-steps and no later layer
/// overrides it with a global batch size. A recorded 1 counts as not given.
bool isAccumulationGiven(const Options &options);

/// Returns the batch sizes that --auto-find-batch-size tries, ascending, at
/// most kMostFound or the given batch size. With a global batch size: the
/// divisors of a rank's rows. Without: 1 and its doubles, or a given
/// --per-device-train-batch-size and its halves (rounded down), as in
/// Accelerate.
StatusOr<std::vector<int64_t>> batchCandidates(const Options &options,
                                               int64_t ranks);
inline constexpr int64_t kMostFound = 64;

/// Returns "4 rows x 2 ranks x 8 accumulated = 64 rows a step".
std::string stepRowsText(int64_t batch, int64_t ranks, int64_t accumulation);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_STEPROWS_H
