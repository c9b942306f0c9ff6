// SPDX-License-Identifier: MIT

// Operations on rows of scores: maxima, exponentials and sums, in a fixed order
// whatever the vector width. Matrices are dense.

#ifndef QLORA_RUNTIME_KERNELS_CPU_SOFTMAX_H
#define QLORA_RUNTIME_KERNELS_CPU_SOFTMAX_H

#include <cstdint>

namespace qlora {

/// maxima[row] := the row's largest value; -infinity if a row has no values.
void maximaOfRows(const float *values, int64_t rows, int64_t columns,
                  float *maxima);

/// The arguments of exponentiateRows(): results are e^(value - shift of its
/// row), within 1 ulp; 0 for differences below -87, infinity above 88.37.
struct ExponentialRows {
  const float *values; ///< [rows, columns]
  int64_t rows, columns;
  const float *shifts;        ///< [rows]
  float *sums = nullptr;      ///< [rows]: sums of results before rounding
  float *wide = nullptr;      ///< results; may be `values`
  uint16_t *narrow = nullptr; ///< results in bf16
};
void exponentiateRows(const ExponentialRows &rows);

/// Returns the sum of a[i] * b[i].
float dotProduct(const float *a, const float *b, int64_t count);

/// values[i] := cap * tanh(values[i] / cap). If `slopes` is not null, slopes[i]
/// := the derivative, 1 - tanh^2.
void capRun(float *values, int64_t count, float cap, float *slopes);

/// a[i] := a[i] * b[i]. If `narrow` is not null, stores bf16 there instead.
void multiplyRun(float *a, const float *b, int64_t count, uint16_t *narrow);

void scaleRun(float *values, int64_t count, float factor);

/// gradients := scale * probabilities * (gradients - means[row]): converts the
/// gradient of probabilities to the gradient of scores. If `narrow` is not
/// null, the results go to `narrow` in bf16 instead.
void scoreGradients(const float *probabilities, float *gradients, int64_t rows,
                    int64_t columns, const float *means, float scale,
                    uint16_t *narrow);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_SOFTMAX_H
