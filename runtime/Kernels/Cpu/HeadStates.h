// SPDX-License-Identifier: MIT

// The state of a row's logits over a range of token ids, the merge of such
// states, and their format between ranks.

#ifndef QLORA_RUNTIME_KERNELS_CPU_HEADSTATES_H
#define QLORA_RUNTIME_KERNELS_CPU_HEADSTATES_H

#include <cmath>
#include <limits>

#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora {

using plans::HeadRowState;

/// Returns the state of all token ids, merged from the states of consecutive
/// ranges. stateOf(range) returns a range's state.
template <typename StateOf>
HeadRowState mergedState(int64_t ranges, StateOf stateOf) {
  HeadRowState whole = stateOf(0);
  for (int64_t range = 1; range < ranges; ++range) {
    const HeadRowState &state = stateOf(range);
    whole.target += state.target;
    // The first of equal maxima counts, as in torch.argmax.
    if (state.maximum > whole.maximum) {
      whole.maximum = state.maximum;
      whole.best = state.best;
    }
  }
  whole.sum = 0;
  for (int64_t range = 0; range < ranges; ++range)
    whole.sum += stateOf(range).sum *
                 std::exp(double(stateOf(range).maximum) - whole.maximum);
  return whole;
}

/// Loads row `row` of the operand `states` of head_part and head_merge.
inline HeadRowState loadState(const float *states, int64_t row) {
  const float *const from = states + row * plans::kHeadStateNumbers;
  return {from[1], from[0], from[2], static_cast<int64_t>(from[3])};
}
inline void storeState(const HeadRowState &state, float *states, int64_t row) {
  float *const to = states + row * plans::kHeadStateNumbers;
  to[0] = state.maximum;
  to[1] = static_cast<float>(state.sum);
  to[2] = state.target;
  to[3] = static_cast<float>(state.best);
}

/// Returns the state of a vocabulary shard without token ids.
inline HeadRowState emptyState() {
  return {0, -std::numeric_limits<float>::infinity(), 0, -1};
}

/// Returns the log of the sum of the exponentials of all logits.
inline double logSumOf(const HeadRowState &whole) {
  return whole.maximum + std::log(whole.sum);
}

/// Returns the derivative of the cap at a capped logit; 1 without a cap.
inline float capSlope(float logit, float cap) {
  const float t = cap == 0 ? 0 : logit / cap;
  return 1 - t * t;
}

/// Returns the derivative of a row's loss with respect to the target's uncapped
/// logit: softmax - 1. Uses expm1, because the subtraction cancels for a likely
/// target.
inline double targetGradient(const HeadRowState &whole, float cap) {
  return std::expm1(whole.target - logSumOf(whole)) *
         capSlope(whole.target, cap);
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_HEADSTATES_H
