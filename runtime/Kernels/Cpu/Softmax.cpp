// SPDX-License-Identifier: MIT

// Reductions in sixteen lanes: a compiler may vectorise them without changing
// the order of a sum.

#include "runtime/Kernels/Cpu/Softmax.h"

#include <limits>

#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Rows.h"

namespace qlora {

static constexpr int64_t kLanes = 16;

/// As a tree: four dependent additions, not sixteen.
static inline float sumLanes(float (&lanes)[kLanes]) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t lane = 0; lane < half; ++lane)
      lanes[lane] += lanes[lane + half];
  return lanes[0];
}

static inline float maximumOfLanes(float (&lanes)[kLanes]) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t lane = 0; lane < half; ++lane)
      lanes[lane] = qlora_max(lanes[lane], lanes[lane + half]);
  return lanes[0];
}

QLORA_VECTOR float maximumOf(const float *values, int64_t count) {
  float lanes[kLanes];
  for (float &lane : lanes)
    lane = -std::numeric_limits<float>::infinity();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = qlora_max(values[i + lane], lanes[lane]);
  for (int64_t lane = 0; i < count; ++i, ++lane)
    lanes[lane] = qlora_max(values[i], lanes[lane]);
  return maximumOfLanes(lanes);
}

QLORA_VECTOR float exponentiate(float *values, int64_t count, float shift) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i)
    values[i] = qlora_exp(values[i] - shift);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] += values[i + lane];
  for (int64_t lane = 0; i < count; ++i, ++lane)
    lanes[lane] += values[i];
  return sumLanes(lanes);
}

QLORA_VECTOR float exponentiateBF16(const float *__restrict values,
                                    int64_t count, float shift,
                                    uint16_t *__restrict to) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = qlora_exp(values[i + lane] - shift);
      lanes[lane] += value;
      to[i + lane] = qlora_f32_to_bf16(value);
    }
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    const float value = qlora_exp(values[i] - shift);
    lanes[lane] += value;
    to[i] = qlora_f32_to_bf16(value);
  }
  return sumLanes(lanes);
}

QLORA_VECTOR static float sumRun(const float *values, int64_t count,
                                 float shift) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] += qlora_exp(values[i + lane] - shift);
  for (int64_t lane = 0; i < count; ++i, ++lane)
    lanes[lane] += qlora_exp(values[i] - shift);
  return sumLanes(lanes);
}

double sumExponentials(const float *values, int64_t count, float shift) {
  static constexpr int64_t kRun = 1024;
  double sum = 0;
  for (int64_t i = 0; i < count; i += kRun)
    sum += sumRun(values + i, count - i < kRun ? count - i : kRun, shift);
  return sum;
}

QLORA_VECTOR float dotProduct(const float *a, const float *b, int64_t count) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] += a[i + lane] * b[i + lane];
  for (int64_t lane = 0; i < count; ++i, ++lane)
    lanes[lane] += a[i] * b[i];
  return sumLanes(lanes);
}

QLORA_VECTOR void scaleRun(float *values, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i)
    values[i] *= factor;
}

QLORA_VECTOR void scoreGradient(const float *__restrict probabilities,
                                float mean, float scale,
                                float *__restrict gradients, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    gradients[i] = scale * probabilities[i] * (gradients[i] - mean);
}

} // namespace qlora
