/* SPDX-License-Identifier: MIT */

/* The three kernels of UnigramModule.c, as qloracc would print them. The text
 * is C for the CPU and CUDA C++ for a GPU: both kinds of arguments have
 * buffers, constants and the step block. A file that includes this one must
 * define UNIGRAM_ARGS, the type of the arguments, and UNIGRAM_FUNCTION, the
 * specifiers of a function. */

#ifndef QLORA_TESTS_RUNTIME_SESSION_UNIGRAMKERNELS_H
#define QLORA_TESTS_RUNTIME_SESSION_UNIGRAMKERNELS_H

#include "runtime/ABI/kernel.h"

enum { kVocab = 16, kBatch = 2, kTrained = 2 * kVocab };

UNIGRAM_FUNCTION float errorOf(const UNIGRAM_ARGS *args, int32_t token) {
  float p = 0;
  for (int i = 1; i < 4; ++i)
    p += ((const float *)args->buffers[i])[token];
  return 1 - p;
}

/* targets, w, a, b, gradient a, gradient b, loss, count. Row 0 does all the
 * work, since it sums over rows. */
UNIGRAM_FUNCTION void accumulate(const UNIGRAM_ARGS *args, int64_t begin,
                                 int64_t end) {
  const int32_t *targets = (const int32_t *)args->buffers[0];
  float *const *out = (float *const *)args->buffers;
  for (int64_t i = 0; begin == 0 && end > 0 && i < args->constants[0]; ++i) {
    if (targets[i] < 0)
      continue;
    float error = errorOf(args, targets[i]);
    out[4][targets[i]] -= error;
    out[5][targets[i]] -= error;
    out[6][0] += error * error / 2;
    out[7][0] += 1;
  }
}

/* targets, w, a, b, loss, count, correct */
UNIGRAM_FUNCTION void evaluate(const UNIGRAM_ARGS *args, int64_t begin,
                               int64_t end) {
  const int32_t *targets = (const int32_t *)args->buffers[0];
  float loss = 0, count = 0;
  for (int64_t i = 0; begin == 0 && end > 0 && i < args->constants[0]; ++i) {
    float error = targets[i] < 0 ? 1 : errorOf(args, targets[i]);
    ((int32_t *)args->buffers[6])[i] = error < 0.1f && error > -0.1f;
    loss += targets[i] < 0 ? 0 : error * error / 2;
    count += targets[i] >= 0;
  }
  *(float *)args->buffers[4] = loss;
  *(float *)args->buffers[5] = count;
}

/* a and b, gradient, m, v, count, norm */
UNIGRAM_FUNCTION void adamw(const UNIGRAM_ARGS *args, int64_t begin,
                            int64_t end) {
  float *const *data = (float *const *)args->buffers;
  const qlora_step_block *s = args->step;
  double squares = 0;
  for (int i = 0; i < kTrained; ++i)
    squares += (double)data[1][i] * data[1][i];
  float norm = (float)__builtin_sqrt(squares) / data[4][0];
  float clip = s->max_grad_norm > 0 && norm > s->max_grad_norm
                   ? s->max_grad_norm / (norm + 1e-6f)
                   : 1;
  /* Like clip_norm and AdamW together: a non-finite gradient is skipped. */
  int is_finite = norm - norm == 0;
  for (int i = 0; is_finite && begin == 0 && end > 0 && i < kTrained; ++i) {
    float g = data[1][i] / data[4][0] * clip;
    data[2][i] = s->beta1 * data[2][i] + (1 - s->beta1) * g;
    data[3][i] = s->beta2 * data[3][i] + (1 - s->beta2) * g * g;
    float denominator =
        __builtin_sqrtf(data[3][i]) / s->bias_correction2_sqrt + s->epsilon;
    data[0][i] -= s->learning_rate * s->weight_decay * data[0][i];
    data[0][i] -=
        s->learning_rate / s->bias_correction1 * data[2][i] / denominator;
  }
  data[5][0] = norm;
}

#endif /* QLORA_TESTS_RUNTIME_SESSION_UNIGRAMKERNELS_H */
