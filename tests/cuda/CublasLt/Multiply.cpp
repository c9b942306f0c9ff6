// SPDX-License-Identifier: MIT

// The arithmetic, by oneDNN's float32 product; bf16 is widened before.

#include "tests/cuda/CublasLt/Objects.h"

#include "runtime/Kernels/Rows.h"

#include <oneapi/dnnl/dnnl.h>

#include <vector>

namespace qlora::platform {

static uint64_t elementBytes(int type) { return type == kCudaR32F ? 4 : 2; }

uint64_t bytesOf(const cublasLtMatrixLayoutOpaque &layout) {
  const uint64_t last =
      (layout.columns - 1) * uint64_t(layout.leading) + layout.rows;
  return last * elementBytes(layout.type);
}

/// Dense columns of float32.
static std::vector<float> widen(const cublasLtMatrixLayoutOpaque &layout,
                                const void *data) {
  std::vector<float> dense(layout.rows * layout.columns);
  for (uint64_t c = 0; c < layout.columns; ++c)
    for (uint64_t r = 0; r < layout.rows; ++r) {
      const int64_t at = int64_t(c) * layout.leading + int64_t(r);
      dense[c * layout.rows + r] = layout.type == kCudaR32F
                                       ? qlora_load_f32(data, at)
                                       : qlora_load_bf16(data, at);
    }
  return dense;
}

static void narrow(const cublasLtMatrixLayoutOpaque &layout,
                   const std::vector<float> &dense, void *data) {
  for (uint64_t c = 0; c < layout.columns; ++c)
    for (uint64_t r = 0; r < layout.rows; ++r) {
      const int64_t at = int64_t(c) * layout.leading + int64_t(r);
      const float value = dense[c * layout.rows + r];
      if (layout.type == kCudaR32F)
        qlora_store_f32(data, at, value);
      else
        qlora_store_bf16(data, at, value);
    }
}

void multiply(const Product &product, float alpha, const void *a,
              const void *b, float beta, const void *c, void *d) {
  const std::vector<float> wideA = widen(product.a, a);
  const std::vector<float> wideB = widen(product.b, b);
  std::vector<float> sum(size_t(product.m * product.n));
  if (beta != 0)
    sum = widen(product.c, c);
  // Row-major for oneDNN: its C is our transposed D, op(B)^T op(A)^T.
  dnnl_sgemm(product.description.transposeB == kCublasOpT ? 'T' : 'N',
             product.description.transposeA == kCublasOpT ? 'T' : 'N',
             product.n, product.m, product.k, alpha, wideB.data(),
             int64_t(product.b.rows), wideA.data(), int64_t(product.a.rows),
             beta, sum.data(), product.m);
  narrow(product.d, sum, d);
}

} // namespace qlora::platform
