// SPDX-License-Identifier: MIT

// Finds the cause of a loss or gradient that is not finite, and documents the
// policy for such a step (--on-nonfinite). Trainer::handleNonFinite in
// Training.cpp applies the policy.
//
// Such a step has no effect on the device: clip_norm's scale is NaN, and AdamW
// then keeps all values. The option selects how the run continues:
//
//   abort    the run ends with an error; its checkpoints remain
//   skip     the step and its rows are skipped; after kMostInARow such steps
//            in a row the run ends
//   rewind   restores the weights and moments of the newest checkpoint, and
//            continues after the failed step, so the steps since the
//            checkpoint are not repeated; the run ends if there is no
//            checkpoint, or after kMostInARow failed steps in a row
//
// All ranks get the same sums and act in the same way.

#ifndef QLORA_RUNTIME_SESSION_NONFINITE_H
#define QLORA_RUNTIME_SESSION_NONFINITE_H

#include <cstdint>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Checkpoint/Run.h"

namespace qlora {

inline constexpr int64_t kMostInARow = 10;

/// Reruns the micro-batches of `step` one by one with the current weights, and
/// describes the first whose loss or gradient is not finite: "rank 1,
/// micro-batch 2 (rows 17, 4): the gradient of TENSOR has nan". Returns an
/// empty string if all are finite now. All ranks call it and get the same text.
/// The gradient arena is zero afterwards. `block`: the step block of `step`.
StatusOr<std::string> findNonFinite(const Run &run, int64_t step,
                                    qlora_step_block block);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_NONFINITE_H
