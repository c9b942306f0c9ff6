// SPDX-License-Identifier: MIT

// How the rows of an optimizer step are shared:
//
//   --global-batch-size = --per-device-train-batch-size
//                         x --gradient-accumulation-steps x ranks
//
// The first is what a training is about (learning rates go with it), the others
// are how it fits a machine. A user may give the first and leave the rest to
// the program, or the others, and the first is what they make.

#ifndef QLORA_RUNTIME_BASE_STEPROWS_H
#define QLORA_RUNTIME_BASE_STEPROWS_H

#include <vector>

#include "runtime/Base/Options.h"

namespace qlora {

/// Micro-batches of a step on each of `ranks` ranks. An error names the nearest
/// global batch sizes where the rows cannot be shared, and both values where
/// --gradient-accumulation-steps is given too and says otherwise. Of a later
/// layer (Options.h) than the steps, the global batch size overrides them, and
/// so it does with the 1 that a program records where nobody gave them.
StatusOr<int64_t> accumulationSteps(const Options &options, int64_t ranks);

/// Whether --gradient-accumulation-steps is the user's number, and not one that a
/// global batch size of a later layer overrides.
bool isAccumulationGiven(const Options &options);

/// The batches that --auto-find-batch-size looks at, ascending: of a global
/// batch size the divisors of a rank's share, else 1 and its doubles, or, of a
/// --per-device-train-batch-size that is given, that and its halves (rounded
/// down), as other trainers halve it. At most kMostFound, or what is given.
StatusOr<std::vector<int64_t>> batchCandidates(const Options &options,
                                               int64_t ranks);
inline constexpr int64_t kMostFound = 64;

/// "4 rows x 2 ranks x 8 accumulated = 64 rows a step".
std::string stepRowsText(int64_t batch, int64_t ranks, int64_t accumulation);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_STEPROWS_H
