// SPDX-License-Identifier: MIT

// grouped_weight_grad: dW of each group's matrix.

#include <algorithm>

#include "runtime/Kernels/Cpu/CheckIndices.h"
#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora::cpu {

/// Number of elements that are summed in f32 at a time.
static constexpr int64_t kSummed = 1024;

namespace {
/// Sums dW_g over the group's rows in their order. Inner loops run along the
/// longer side of dW_g, because LoRA's matrices are narrow in one dimension.
class GroupedWeightGrad {
public:
  explicit GroupedWeightGrad(const KernelRequest &r)
      : m(r.constant("m")), groups(r.constant("groups")),
        rows(r.constant("rows")), columns(r.constant("columns")),
        isLast(r.constant("groups_last") != 0), isTransposed(columns < rows),
        alpha(float(r.constantAsDouble("alpha"))),
        beta(float(r.constantAsDouble("beta"))) {
    const Side dy = {0, r.type("dy"), r.constant("lddy"), rows};
    const Side x = {1, r.type("x"), r.constant("ldx"), columns};
    shorter = isTransposed ? x : dy;
    longer = isTransposed ? dy : x;
  }

  int64_t tasks() const { return groups * shorter.width; }
  Status check(const LibraryKernelArgs &args) const {
    return checkIndices("grouped_weight_grad",
                        bufferOf<const int32_t>(args, 2), groups + 1, m + 1);
  }
  void run(const LibraryKernelArgs &args, int64_t task) const;

private:
  struct Side {
    size_t operand;
    qlora_dtype type;
    int64_t ld, width;
  };
  /// Returns the index in dW of element (row, column) of a group's matrix dW_g.
  int64_t indexOf(int64_t group, int64_t row, int64_t column) const {
    return isLast ? (row * columns + column) * groups + group
                  : (group * rows + row) * columns + column;
  }

  int64_t m, groups, rows, columns;
  bool isLast, isTransposed;
  float alpha, beta;
  Side shorter, longer;
};
} // namespace

void GroupedWeightGrad::run(const LibraryKernelArgs &args, int64_t task) const {
  const int64_t group = task / shorter.width, at = task % shorter.width;
  const auto *offsets = bufferOf<const int32_t>(args, 2) + group;
  auto *dw = bufferOf<float>(args, 3);
  for (int64_t first = 0; first < longer.width; first += kSummed) {
    const int64_t count = std::min(kSummed, longer.width - first);
    float sum[kSummed];
    std::fill_n(sum, count, 0.0f);
    for (int64_t p = offsets[0]; p < offsets[1]; ++p)
      addScaled(loadElement(shorter.type, args.buffers[shorter.operand],
                            p * shorter.ld + at),
                longer.type,
                elementAt(args.buffers[longer.operand], longer.type,
                          p * longer.ld + first),
                sum, count);
    for (int64_t i = 0; i < count; ++i) {
      float &to = dw[isTransposed ? indexOf(group, first + i, at)
                                  : indexOf(group, at, first + i)];
      to = alpha * sum[i] + (beta == 0 ? 0 : beta * to);
    }
  }
}

PreparedKernel grouped_weight_grad::cpu::prepare(const KernelRequest &request,
                                                 uint64_t) {
  const GroupedWeightGrad gradient(request);
  return makeKernel([gradient](const LibraryKernelArgs &args) {
    QLORA_RETURN_IF_ERROR(gradient.check(args));
    parallelFor(gradient.tasks(), threadCount(),
                [&](int64_t task, int64_t) { gradient.run(args, task); });
    return Status::ok();
  });
}

} // namespace qlora::cpu
