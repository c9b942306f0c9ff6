// SPDX-License-Identifier: MIT

// Runs of scores: maximum, exponentials and sums, in a fixed order whatever
// the vector width. Shared by attention and head_loss.

#ifndef QLORA_RUNTIME_KERNELS_CPU_SOFTMAX_H
#define QLORA_RUNTIME_KERNELS_CPU_SOFTMAX_H

#include <cstdint>

namespace qlora {

/// The largest value; -infinity for none.
float maximumOf(const float *values, int64_t count);

/// values[i] := e^(values[i] - shift); returns their sum.
float exponentiate(float *values, int64_t count, float shift);

/// to[i] := e^(values[i] - shift) in bf16; returns their sum before rounding.
float exponentiateBF16(const float *values, int64_t count, float shift,
                       uint16_t *to);

/// Sum of e^(values[i] - shift), in f64 over runs of 1024.
double sumExponentials(const float *values, int64_t count, float shift);

/// Sum of a[i] * b[i].
float dotProduct(const float *a, const float *b, int64_t count);

/// values[i] := values[i] * factor.
void scaleRun(float *values, int64_t count, float factor);

/// gradients[i] := scale * probabilities[i] * (gradients[i] - mean): from the
/// gradient of probabilities to that of scores.
void scoreGradient(const float *probabilities, float mean, float scale,
                   float *gradients, int64_t count);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_SOFTMAX_H
