// SPDX-License-Identifier: MIT

// Plain matmul, panel_matmul, int8_matmul, decode and adapted_norm: a separate
// f64 sum for each element.

#include <cmath>
#include <vector>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Math/Int8Matmul.h"
#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora::cpu {

using plans::GemmProblem;

static double dot(const GemmProblem &p, const void *a, const void *b,
                  int64_t row, int64_t column) {
  double sum = 0;
  for (int64_t i = 0; i < p.k; ++i) {
    const int64_t aIndex = p.transposeA ? i * p.lda + row : row * p.lda + i;
    const int64_t bIndex =
        p.transposeB ? column * p.ldb + i : i * p.ldb + column;
    sum += double(loadElement(p.a, a, aIndex)) * loadElement(p.b, b, bIndex);
  }
  return sum;
}

PreparedKernel matmul::reference::prepare(const KernelRequest &request,
                                          uint64_t) {
  enum Operand { kA, kB, kC };
  const GemmProblem p = plans::matmulProblem(request);
  return makeKernel([p](const LibraryKernelArgs &args) {
    parallelFor(p.m, threadCount(), [&](int64_t row, int64_t) {
      for (int64_t column = 0; column < p.n; ++column) {
        const int64_t index = row * p.ldc + column;
        double value =
            p.alpha * dot(p, args.buffers[kA], args.buffers[kB], row, column);
        if (p.beta != 0)
          value += double(p.beta) * loadElement(p.c, args.buffers[kC], index);
        storeElement(p.c, args.buffers[kC], index, float(value));
      }
    });
    return Status::ok();
  });
}

static float storedElement(const StoredWeight &weight, const void *w,
                           int64_t index) {
  return weight.isQuantized()
             ? StoredTensor::of(weight.layout, w).element(index)
             : loadElement(weight.dtype, w, index);
}

/// Returns element `index` of W, rounded to `type` as in a decoded panel.
static double weightElement(const StoredWeight &weight, const void *w,
                            int64_t index, qlora_dtype type) {
  uint32_t rounded = 0;
  storeElement(type, &rounded, 0, storedElement(weight, w, index));
  return loadElement(type, &rounded, 0);
}

PreparedKernel panel_matmul::reference::prepare(const KernelRequest &request,
                                                uint64_t) {
  enum Operand { kA, kW, kC };
  const StoredWeight weight = StoredWeight::of(request);
  const bool isForward = request.constant("transpose_w") != 0;
  const int64_t m = request.constant("m"), lda = request.constant("lda");
  const int64_t rows = request.constant("rows"), ldc = request.constant("ldc");
  const int64_t columns = request.constant("columns");
  const qlora_dtype a = request.type("a"), c = request.type("c");
  const double alpha = request.constantAsDouble("alpha");
  const double beta = request.constantAsDouble("beta");
  const int64_t n = isForward ? rows : columns;
  const int64_t k = isForward ? columns : rows;
  return makeKernel([=](const LibraryKernelArgs &args) {
    parallelFor(m * n, threadCount(), [&](int64_t index, int64_t) {
      const int64_t row = index / n, column = index % n;
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        const int64_t element =
            isForward ? column * columns + i : i * columns + column;
        sum += loadElement(a, args.buffers[kA], row * lda + i) *
               weightElement(weight, args.buffers[kW], element, a);
      }
      const int64_t target = row * ldc + column;
      double value = alpha * sum;
      if (beta != 0)
        value += beta * loadElement(c, args.buffers[kC], target);
      storeElement(c, args.buffers[kC], target, float(value));
    });
    return Status::ok();
  });
}

namespace {
/// int8_matmul with the formulas of Math/Int8Matmul.h.
struct Int8Reference {
  StoredWeight weight;
  int64_t m, n, k, lda, ldc;
  qlora_dtype a, c;
  uint32_t outlier;
  double alpha, beta;

  float half(const void *x, int64_t row, int64_t i) const {
    return qlora_round_f16(loadElement(a, x, row * lda + i));
  }
  bool isOutlier(float x) const {
    return qlora_is_outlier(qlora_to_bits(qlora_abs(x)), outlier);
  }
  std::vector<bool> outliers(const void *x) const {
    std::vector<bool> found(static_cast<size_t>(k));
    for (int64_t row = 0; row < m; ++row)
      for (int64_t i = 0; i < k; ++i)
        if (isOutlier(half(x, row, i)))
          found[static_cast<size_t>(i)] = true;
    return found;
  }
  float absmax(const void *x, int64_t row) const {
    float most = 0;
    for (int64_t i = 0; i < k; ++i)
      if (const float value = half(x, row, i); !isOutlier(value))
        most = qlora_maximum(most, qlora_abs(value));
    return most;
  }
  float rounded(float value) const {
    uint32_t stored = 0;
    storeElement(a, &stored, 0, value);
    return loadElement(a, &stored, 0);
  }
  /// Returns an element of y = a . W^T. `out` marks the outlier columns; `most`
  /// is the row's absmax.
  double element(const void *x, const void *w, const std::vector<bool> &out,
                 int64_t row, float most, int64_t column) const {
    const auto *bytes = static_cast<const uint8_t *>(w);
    const float scale = reinterpret_cast<const float *>(
        bytes + weight.layout.scales)[column];
    const float inverse = qlora_int8_inverse(most);
    int32_t sum = 0;
    double extra = 0;
    for (int64_t i = 0; i < k; ++i) {
      const int code = static_cast<int8_t>(bytes[column * k + i]);
      if (out[static_cast<size_t>(i)])
        extra += double(loadElement(a, x, row * lda + i)) *
                 rounded(qlora_int8_weight(code, scale));
      else
        sum += qlora_int8_code(half(x, row, i), inverse) * code;
    }
    return rounded(qlora_int8_number(sum, most, scale)) + extra;
  }
};
} // namespace

PreparedKernel int8_matmul::reference::prepare(const KernelRequest &r,
                                               uint64_t) {
  enum Operand { kA, kW, kC };
  const Int8Reference op = {StoredWeight::of(r),
                            r.constant("m"),
                            r.constant("rows"),
                            r.constant("columns"),
                            r.constant("lda"),
                            r.constant("ldc"),
                            r.type("a"),
                            r.type("c"),
                            qlora_outlier_bits(r.constantAsDouble("threshold")),
                            r.constantAsDouble("alpha"),
                            r.constantAsDouble("beta")};
  return makeKernel([op](const LibraryKernelArgs &args) {
    const void *const x = args.buffers[kA];
    const std::vector<bool> outliers = op.outliers(x);
    parallelFor(op.m, threadCount(), [&](int64_t row, int64_t) {
      const float most = op.absmax(x, row);
      for (int64_t column = 0; column < op.n; ++column) {
        const int64_t index = row * op.ldc + column;
        double value = op.alpha * op.element(x, args.buffers[kW], outliers,
                                             row, most, column);
        if (op.beta != 0)
          value += op.beta * loadElement(op.c, args.buffers[kC], index);
        storeElement(op.c, args.buffers[kC], index, float(value));
      }
    });
    return Status::ok();
  });
}

PreparedKernel decode::reference::prepare(const KernelRequest &request,
                                          uint64_t) {
  const StoredWeight weight = StoredWeight::of(request);
  const qlora_dtype outType = request.type("out");
  const int64_t count = request.constant("rows") * request.constant("columns");
  return makeKernel([=](const LibraryKernelArgs &args) {
    for (int64_t i = 0; i < count; ++i)
      storeElement(outType, args.buffers[1], i,
                   storedElement(weight, args.buffers[0], i));
    return Status::ok();
  });
}

PreparedKernel adapted_norm::reference::prepare(const KernelRequest &request,
                                                uint64_t) {
  enum Operand { kW, kA, kB, kOut };
  const StoredWeight weight = StoredWeight::of(request);
  const bool isTransposed = request.constant("turned") != 0;
  const int64_t rows = request.constant("rows"), columns = weight.columns;
  const int64_t out = isTransposed ? columns : rows,
                in = isTransposed ? rows : columns;
  const int64_t rank = request.constant("rank");
  const double scale = request.constantAsDouble("scale");
  return makeKernel([=](const LibraryKernelArgs &args) {
    const auto *a = bufferOf<const float>(args, kA);
    const auto *b = bufferOf<const float>(args, kB);
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < in; ++i) {
        double value =
            storedElement(weight, args.buffers[kW],
                          isTransposed ? i * columns + o : o * in + i);
        for (int64_t j = 0; j < rank; ++j)
          value += scale * b[o * rank + j] * a[j * in + i];
        sum += value * value;
      }
      bufferOf<float>(args, kOut)[o] = float(std::sqrt(sum));
    }
    return Status::ok();
  });
}

} // namespace qlora::cpu
