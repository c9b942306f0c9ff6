// SPDX-License-Identifier: MIT

// What is found of a row's logits with ranges of the words, one behind the
// other, what that is together, and how ranks tell each other.

#ifndef QLORA_RUNTIME_KERNELS_CPU_HEADSTATES_H
#define QLORA_RUNTIME_KERNELS_CPU_HEADSTATES_H

#include <cmath>
#include <limits>

#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora {

using plans::HeadRowState;

/// Of all words; stateOf(range) is what was found with one of the ranges.
template <typename StateOf>
HeadRowState mergedState(int64_t ranges, StateOf stateOf) {
  HeadRowState whole = stateOf(0);
  for (int64_t range = 1; range < ranges; ++range) {
    const HeadRowState &state = stateOf(range);
    whole.target += state.target;
    // torch.argmax: the first of equal maxima.
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

/// Row `row` of the operand `states` of head_part and head_merge.
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

/// Of a piece without words.
inline HeadRowState emptyState() {
  return {0, -std::numeric_limits<float>::infinity(), 0, -1};
}

/// The log of the sum of the exponentials of all logits.
inline double logSumOf(const HeadRowState &whole) {
  return whole.maximum + std::log(whole.sum);
}

/// The derivative of a logit under a cap by the one before; 1 without a cap.
inline float capSlope(float logit, float cap) {
  const float t = cap == 0 ? 0 : logit / cap;
  return 1 - t * t;
}

/// The derivative of a row's loss by the target's logit before the cap:
/// softmax - 1, which would cancel for a likely target.
inline double targetGradient(const HeadRowState &whole, float cap) {
  return std::expm1(whole.target - logSumOf(whole)) *
         capSlope(whole.target, cap);
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_HEADSTATES_H
