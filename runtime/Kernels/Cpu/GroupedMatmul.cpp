// SPDX-License-Identifier: MIT

// grouped_matmul: each group of rows has a separate matrix. As in panel_matmul,
// a thread decodes a panel of a matrix and multiplies the group's rows with it.
//
// The number of rows of a group is known only at run time, but a GEMM has a
// fixed number of rows. So GEMMs for several row counts are prepared. A group's
// last rows use the smallest GEMM that holds them. Such a GEMM may cover rows
// of other groups; only this group's rows are written.

#include <algorithm>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/Gemm.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora::cpu::grouped_matmul {

enum Operand { kA, kW, kOffsets, kC, kWorkspace };

/// Maximum rows of one GEMM, so that its sums stay in a cache.
static constexpr int64_t kMostRows = 256;

using plans::PanelPlan;

namespace {

struct GroupedMatmul final : LibraryKernel {
  explicit GroupedMatmul(const KernelRequest &request)
      : plan(PanelPlan::of(request)), weight(StoredWeight::of(request)),
        tasks(plan.slots()), lda(request.constant("lda")),
        cType(request.type("c")), ldc(request.constant("ldc")),
        groupsLast(request.constant("groups_last") != 0),
        beta(static_cast<float>(request.constantAsDouble("beta"))) {}

  Status run(const LibraryKernelArgs &args) override;
  Status checkOffsets(const int32_t *offsets) const;
  const void *denseA(const LibraryKernelArgs &args) const;
  void clearRest(const LibraryKernelArgs &args) const;
  void decode(const void *w, int64_t group, int64_t first, int64_t columns,
              void *out) const;
  int64_t heightFor(int64_t rows) const;
  Status runPanel(const LibraryKernelArgs &args, const void *a, int64_t task,
                  int64_t slot) const;

  PanelPlan plan;
  StoredWeight weight;
  FallibleTasks tasks;
  int64_t lda;
  qlora_dtype cType;
  int64_t ldc;
  bool groupsLast;
  float beta;
  std::vector<int64_t> heights; ///< rows of each prepared GEMM, ascending
  SlotProducts products;
};

} // namespace

PreparedKernel onednn::prepare(const KernelRequest &request, uint64_t) {
  auto kernel = std::make_unique<GroupedMatmul>(request);
  const PanelPlan &plan = kernel->plan;
  // Mostly multiples of 16, the rows of an AMX tile, to compute few extra rows.
  for (int64_t height : {8, 16, 32, 64, 96, 128, 160, 192, 224, 256})
    if (height < plan.m)
      kernel->heights.push_back(height);
  if (plan.m <= kMostRows)
    kernel->heights.push_back(plan.m);
  for (int64_t rows : kernel->heights)
    for (int64_t columns : {plan.columns, plan.n % plan.columns})
      if (columns > 0)
        QLORA_RETURN_IF_ERROR(kernel->products.add(plan.product(rows, columns),
                                                   kernel->tasks.slots(),
                                                   plan.scratch.bytes));
  return std::unique_ptr<LibraryKernel>(std::move(kernel));
}

/// Checks the offsets, which an earlier kernel wrote.
Status GroupedMatmul::checkOffsets(const int32_t *offsets) const {
  bool isOrdered = offsets[0] >= 0 && offsets[plan.groups] <= plan.m;
  for (int64_t group = 0; group < plan.groups; ++group)
    isOrdered &= offsets[group] <= offsets[group + 1];
  if (isOrdered)
    return Status::ok();
  return Status::error(StatusCode::kInternal,
                       "grouped_matmul: offsets do not rise from 0 to {}",
                       plan.m);
}

/// Returns operand a, or a dense copy that it writes if rows of a have gaps.
const void *GroupedMatmul::denseA(const LibraryKernelArgs &args) const {
  const void *a = args.buffers[kA];
  uint8_t *const copy = plan.dense.in(args.buffers[kWorkspace]);
  if (!copy)
    return a;
  const int64_t rows = bufferOf<const int32_t>(args, kOffsets)[plan.groups];
  parallelRanges(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      convertRun(plan.type, elementAt(a, plan.type, row * lda), plan.type,
                 elementAt(copy, plan.type, row * plan.k), plan.k);
  });
  return copy;
}

/// Clears the rows of c after the last group if beta is 0.
void GroupedMatmul::clearRest(const LibraryKernelArgs &args) const {
  if (beta != 0)
    return;
  const int64_t used = bufferOf<const int32_t>(args, kOffsets)[plan.groups];
  parallelRanges(plan.m - used, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = used + begin; row < used + end; ++row)
      clearRun(cType, elementAt(args.buffers[kC], cType, row * ldc), plan.n);
  });
}

/// Decodes the range of w for the panel of c that begins at column `first`.
void GroupedMatmul::decode(const void *w, int64_t group, int64_t first,
                           int64_t columns, void *out) const {
  StoredWeight::Part part = {0, plan.k, first, columns};
  if (plan.isForward)
    part = {first, columns, 0, plan.k};
  if (!groupsLast) {
    part.firstRow += group * (plan.isForward ? plan.n : plan.k);
    return weight.decodePart(w, part, plan.type, out);
  }
  for (int64_t i = 0; i < part.rowCount; ++i)
    for (int64_t j = 0; j < part.columnCount; ++j)
      storeElement(plan.type, out, i * part.columnCount + j,
                   loadElement(weight.dtype, w,
                               (part.firstRow + i) * weight.columns +
                                   (part.firstColumn + j) * plan.groups +
                                   group));
}

int64_t GroupedMatmul::heightFor(int64_t rows) const {
  const auto found = std::ranges::lower_bound(heights, rows);
  return found == heights.end() ? heights.back() : *found;
}

Status GroupedMatmul::runPanel(const LibraryKernelArgs &args, const void *a,
                               int64_t task, int64_t slot) const {
  const int64_t group = task / plan.panels();
  const auto *offsets = bufferOf<const int32_t>(args, kOffsets) + group;
  if (offsets[0] == offsets[1])
    return Status::ok();
  uint8_t *const own =
      bufferOf<uint8_t>(args, kWorkspace) + plan.slotBytes * slot;
  uint8_t *const decoded = plan.decoded.in(own);
  auto *const sum = plan.sum.in<float>(own);
  const int64_t first = task % plan.panels() * plan.columns;
  const int64_t columns = std::min(plan.columns, plan.n - first);
  decode(args.buffers[kW], group, first, columns, decoded);
  for (int64_t row = offsets[0]; row < offsets[1];) {
    const int64_t height = heightFor(offsets[1] - row);
    const int64_t start = std::min(row, plan.m - height);
    QLORA_RETURN_IF_ERROR(products.find(plan.product(height, columns), slot)
                              .run(elementAt(a, plan.type, start * plan.k),
                                   decoded, sum, plan.scratch.in(own)));
    for (const int64_t end = std::min<int64_t>(offsets[1], start + height);
         row < end; ++row)
      narrowSum(sum + (row - start) * columns, beta, cType,
                elementAt(args.buffers[kC], cType, row * ldc + first), columns);
  }
  return Status::ok();
}

Status GroupedMatmul::run(const LibraryKernelArgs &args) {
  QLORA_RETURN_IF_ERROR(checkOffsets(bufferOf<const int32_t>(args, kOffsets)));
  const void *a = denseA(args);
  clearRest(args);
  return tasks.run(plan.groups * plan.panels(),
                   [&](int64_t task, int64_t slot) {
                     return runPanel(args, a, task, slot);
                   });
}

} // namespace qlora::cpu::grouped_matmul
