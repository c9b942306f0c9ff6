// SPDX-License-Identifier: MIT

// Computes the matmuls with oneDNN's float32 GEMM. bf16 operands are first
// converted to float32.

#include "tests/cuda/CublasLt/Objects.h"

#include "runtime/Kernels/Rows.h"

#include <oneapi/dnnl/dnnl.h>

#include <omp.h>

#include <vector>

namespace qlora::platform {

static uint64_t elementBytes(int type) { return type == kCudaR32F ? 4 : 2; }

uint64_t bytesOf(const cublasLtMatrixLayoutOpaque &layout) {
  const uint64_t last =
      (layout.columns - 1) * uint64_t(layout.leading) + layout.rows;
  return last * elementBytes(layout.type);
}

/// Returns the matrix as dense float32 columns.
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

/// Rounds each value to a type and back.
static void roundTo(int type, std::vector<float> &numbers) {
  if (type == kCudaR32F)
    return;
  for (float &number : numbers) {
    uint16_t half = 0;
    qlora_store_bf16(&half, 0, number);
    number = qlora_load_bf16(&half, 0);
  }
}

namespace {
/// Limits OpenMP to one thread during a small matmul. Waking other threads
/// would take longer than the matmul, especially on busy CPUs.
class FewThreads {
public:
  explicit FewThreads(const Product &product) : before(omp_get_max_threads()) {
    static constexpr int64_t kSmall = int64_t{1} << 22;
    if (product.m * product.n * product.k < kSmall)
      omp_set_num_threads(1);
  }
  ~FewThreads() { omp_set_num_threads(before); }

private:
  int before;
};
} // namespace

/// Returns the elements from index `k` of the summed dimension on: from column
/// `k` if `isAcross`, else from row `k`.
static const float *from(const std::vector<float> &dense, uint64_t rows,
                         bool isAcross, int64_t k) {
  return dense.data() + (isAcross ? uint64_t(k) * rows : uint64_t(k));
}

void multiply(const Product &product, std::span<const Part> parts, float alpha,
              const void *a, const void *b, float beta, const void *c,
              void *d) {
  const std::vector<float> wideA = widen(product.a, a);
  const std::vector<float> wideB = widen(product.b, b);
  const bool isAT = product.description.transposeA == kCublasOpT;
  const bool isBT = product.description.transposeB == kCublasOpT;
  std::vector<float> sum(size_t(product.m * product.n));
  if (beta != 0) {
    sum = widen(product.c, c);
    for (float &number : sum)
      number *= beta;
  }
  std::vector<float> partial(sum.size());
  const FewThreads threads(product);
  for (const Part &part : parts) {
    // oneDNN is row-major. Its C is our D transposed: op(B)^T op(A)^T.
    dnnl_sgemm(isBT ? 'T' : 'N', isAT ? 'T' : 'N', product.n, product.m,
               part.end - part.begin, alpha,
               from(wideB, product.b.rows, isBT, part.begin),
               int64_t(product.b.rows),
               from(wideA, product.a.rows, !isAT, part.begin),
               int64_t(product.a.rows), 0, partial.data(), product.m);
    if (part.isRounded)
      roundTo(product.d.type, partial);
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] += partial[i];
  }
  narrow(product.d, sum, d);
}

} // namespace qlora::platform
