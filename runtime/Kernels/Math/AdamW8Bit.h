// SPDX-License-Identifier: MIT

// Arithmetic of AdamW with 8-bit states, for CPU and CUDA. Every operation is
// rounded separately, except nf4Fused().

#ifndef QLORA_RUNTIME_KERNELS_MATH_ADAMW8BIT_H
#define QLORA_RUNTIME_KERNELS_MATH_ADAMW8BIT_H

#include "runtime/ABI/kernel.h"
#include "runtime/Kernels/Math/NF4Quantize.h"

namespace qlora {

/// The scalars of one launch of adamw_8bit.
struct UpdateRate {
  float rate;    ///< learning rate of the tensor
  float decayed; ///< factor that weight decay applies to a parameter

  QLORA_HOST_DEVICE static UpdateRate of(const qlora_step_block &step,
                                         double rateScale, bool isUndecayed) {
    const float rate = nf4Multiply(step.learning_rate, float(rateScale));
    return {rate, isUndecayed ? 1.0f
                              : nf4Add(1.0f, -nf4Multiply(rate,
                                                          step.weight_decay))};
  }
};

/// Returns the parameter after a step of bitsandbytes' 8-bit AdamW, in torch's
/// order of operations. Updates m (mean) and v (mean square).
QLORA_HOST_DEVICE inline float adamWStep(float p, float &m, float &v, float g,
                                         const UpdateRate &rate,
                                         const qlora_step_block &step) {
  m = nf4Fused(g, step.one_minus_beta1, nf4Multiply(m, step.beta1));
  v = nf4Fused(nf4Multiply(step.one_minus_beta2, g), g,
               nf4Multiply(v, step.beta2));
  const float root = nf4Divide(qlora_sqrt(v), step.bias_correction2_sqrt);
  const float size = nf4Divide(rate.rate, step.bias_correction1);
  return nf4Add(nf4Multiply(p, rate.decayed),
                -nf4Multiply(size, nf4Divide(m, nf4Add(root, step.epsilon))));
}

/// Returns the 8-bit code of `value`, an element of a state's block with
/// largest magnitude `absmax`. `map` has the values of the 256 codes.
QLORA_HOST_DEVICE inline uint8_t stateCode(const float *map, float value,
                                           float absmax) {
  const int32_t bucket =
      absmax == 0.0f ? -1 : nf4Bucket(value, nf4Divide(1.0f, absmax));
  return bucket < 0 ? uint8_t(0) : nf4NearestCode(map, bucket);
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_MATH_ADAMW8BIT_H
