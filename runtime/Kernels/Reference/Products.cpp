// SPDX-License-Identifier: MIT

// matmul, panel_matmul, decode and adapted_norm, plain: each element by its own
// sum in f64.

#include <cmath>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/Parallel.h"
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

/// Element `index` of a weight.
static float storedElement(const StoredWeight &weight, const void *w,
                           int64_t index) {
  return weight.isQuantized()
             ? StoredTensor::of(weight.layout, weight.columns, w).element(index)
             : loadElement(weight.dtype, w, index);
}

/// Element (row, column) of W in a's type, as a panel would hold it.
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
  const bool isTurned = request.constant("turned") != 0;
  const int64_t rows = request.constant("rows"), columns = weight.columns;
  const int64_t out = isTurned ? columns : rows, in = isTurned ? rows : columns;
  const int64_t rank = request.constant("rank");
  const double scale = request.constantAsDouble("scale");
  return makeKernel([=](const LibraryKernelArgs &args) {
    const auto *a = bufferOf<const float>(args, kA);
    const auto *b = bufferOf<const float>(args, kB);
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < in; ++i) {
        double value = storedElement(weight, args.buffers[kW],
                                     isTurned ? i * columns + o : o * in + i);
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
