// SPDX-License-Identifier: MIT

// The state of a row's logits over a range of token ids, the merge of such
// states, their format between ranks, and the loss that follows from a state.

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
    whole.total += state.total;
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
inline HeadRowState loadState(const float *states, int64_t row,
                              double smoothing) {
  const float *const from = states + row * plans::headStateNumbers(smoothing);
  return {from[1], from[0], from[2], static_cast<int32_t>(from[3]),
          smoothing == 0 ? 0 : from[4]};
}
inline void storeState(const HeadRowState &state, float *states, int64_t row,
                       double smoothing) {
  float *const to = states + row * plans::headStateNumbers(smoothing);
  if (smoothing != 0)
    to[4] = state.total;
  to[0] = state.maximum;
  to[1] = static_cast<float>(state.sum);
  to[2] = state.target;
  to[3] = static_cast<float>(state.best);
}

/// Returns the state of a vocabulary shard without token ids.
inline HeadRowState emptyState() {
  return {0, -std::numeric_limits<float>::infinity(), 0, -1, 0};
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

/// The loss of a labelled row, as in Kernels.def, and its derivatives.
struct TokenLoss {
  double smoothing;
  bool hasOwnProbability;
  double words; ///< token ids of the vocabulary

  static TokenLoss of(const KernelRequest &r) {
    return {r.constantAsDouble("smoothing"), r.constant("own_probability") != 0,
            double(r.constant("vocab"))};
  }
  /// Returns the log of the factor s of the loss and its gradient.
  double logScale(const HeadRowState &whole) const {
    return hasOwnProbability ? whole.target - logSumOf(whole) : 0;
  }
  double scale(const HeadRowState &whole) const {
    return std::exp(logScale(whole));
  }
  double loss(const HeadRowState &whole) const {
    return scale(whole) * (logSumOf(whole) - (1 - smoothing) * whole.target -
                           smoothing * whole.total / words);
  }
  /// Returns what smoothing subtracts from the derivative by each logit,
  /// without the factor s.
  double share() const { return smoothing / words; }
  /// Returns the derivative by a capped logit, without the factor s. Uses expm1
  /// for the target, because softmax - 1 cancels for a likely target.
  double slope(double logit, double logSum, bool isTarget) const {
    return (isTarget ? std::expm1(logit - logSum) + smoothing
                     : std::exp(logit - logSum)) -
           share();
  }
  /// Returns the derivative by the target's uncapped logit, without share().
  double targetGradient(const HeadRowState &whole, float cap) const {
    return scale(whole) *
           (std::expm1(whole.target - logSumOf(whole)) + smoothing) *
           capSlope(whole.target, cap);
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_HEADSTATES_H
