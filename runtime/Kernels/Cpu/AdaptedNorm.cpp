// SPDX-License-Identifier: MIT

// adapted_norm: computes tiles of W + scale * B A in a core's cache, and adds
// their squares to one sum per output. A tile covers kOutputs outputs and
// kInputs inputs, and reads its columns of A once.

#include <algorithm>
#include <cmath>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora::cpu {

/// Outputs per task, and so per tile; inputs per tile.
static constexpr int64_t kOutputs = 16, kInputs = 512;

namespace {
enum Operand { kW, kA, kB, kOut };

struct AdaptedWeight {
  StoredWeight weight;
  int64_t out, in, rank;
  bool isTransposed;
  float scale;

  void piece(const LibraryKernelArgs &args, int64_t output, int64_t first,
             int64_t count, float *values) const;
  void measure(const LibraryKernelArgs &args, int64_t begin, int64_t end) const;
};
} // namespace

/// Computes W + scale * B A at inputs [first, first + count) of one output.
void AdaptedWeight::piece(const LibraryKernelArgs &args, int64_t output,
                          int64_t first, int64_t count, float *values) const {
  const auto part = isTransposed ? StoredWeight::Part{first, count, output, 1}
                                 : StoredWeight::Part{output, 1, first, count};
  weight.decodePart(args.buffers[kW], part, QLORA_DTYPE_F32, values);
  const auto *b = bufferOf<const float>(args, kB) + output * rank;
  const auto *a = bufferOf<const float>(args, kA) + first;
  for (int64_t j = 0; j < rank; ++j)
    addScaled(scale * b[j], QLORA_DTYPE_F32, a + j * in, values, count);
}

void AdaptedWeight::measure(const LibraryKernelArgs &args, int64_t begin,
                            int64_t end) const {
  double sums[kOutputs] = {};
  float values[kInputs];
  for (int64_t first = 0; first < in; first += kInputs) {
    const int64_t count = std::min(kInputs, in - first);
    for (int64_t output = begin; output < end; ++output) {
      piece(args, output, first, count, values);
      sums[output - begin] += sumOfSquares(values, count);
    }
  }
  for (int64_t output = begin; output < end; ++output)
    bufferOf<float>(args, kOut)[output] =
        float(std::sqrt(sums[output - begin]));
}

PreparedKernel adapted_norm::pieces::prepare(const KernelRequest &request,
                                             uint64_t) {
  const bool isTransposed = request.constant("turned");
  const int64_t rows = request.constant("rows");
  const int64_t columns = request.constant("columns");
  const AdaptedWeight adapted = {StoredWeight::of(request),
                                 isTransposed ? columns : rows,
                                 isTransposed ? rows : columns,
                                 request.constant("rank"),
                                 isTransposed,
                                 float(request.constantAsDouble("scale"))};
  return makeKernel([=](const LibraryKernelArgs &args) {
    const int64_t tasks = (adapted.out + kOutputs - 1) / kOutputs;
    parallelFor(tasks, threadCount(), [&](int64_t task, int64_t) {
      adapted.measure(args, task * kOutputs,
                      std::min(adapted.out, (task + 1) * kOutputs));
    });
    return Status::ok();
  });
}

} // namespace qlora::cpu
