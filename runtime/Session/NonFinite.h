// SPDX-License-Identifier: MIT

// A loss or gradient that is not finite: what --on-nonfinite does about it, and
// where it came from.
//
// On the device such a step changes nothing (clip_norm's scale is NaN, and AdamW
// then leaves all as it was), so that what was trained before it is whole:
//
//   abort    the run ends with an error; its checkpoints are there
//   skip     the step is left out, its rows too; after kMostInARow of them in a
//            row the run ends, since nothing is learned any more
//   rewind   the newest checkpoint's weights and moments come back, and training
//            goes on after the step, so that neither it nor those that led to it
//            are done again; without a checkpoint, or as often as above with no
//            good step between, the run ends
//
// All ranks see the same sums, and do the same.

#ifndef QLORA_RUNTIME_SESSION_NONFINITE_H
#define QLORA_RUNTIME_SESSION_NONFINITE_H

#include <cstdint>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Session/Run.h"

namespace qlora {

inline constexpr int64_t kMostInARow = 10;

/// Does the micro-batches of `step` again, one by one, with the weights as they
/// are, and says which is the first whose loss or gradient is not finite: "rank
/// 1, micro-batch 2 (rows 17, 4): the gradient of TENSOR has nan". Empty where
/// none is any more. All ranks call it and get the same; the gradient arena is
/// zero afterwards. `block` is that of the step.
StatusOr<std::string> findNonFinite(const Run &run, int64_t step,
                                    qlora_step_block block);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_NONFINITE_H
