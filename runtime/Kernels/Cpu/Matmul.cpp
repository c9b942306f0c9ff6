// SPDX-License-Identifier: MIT

// matmul: one prepared product. panel_matmul: a thread decodes what a panel of
// c's columns is multiplied with, multiplies, and narrows the sums into c, all
// of it in its own cache.

#include <algorithm>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/Gemm.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora::cpu {

PreparedKernel matmul::onednn::prepare(const KernelRequest &request,
                                       uint64_t workspaceBytes) {
  enum Operand { kA, kB, kC, kWorkspace };
  QLORA_ASSIGN_OR_RETURN(
      std::unique_ptr<Gemm> gemm,
      Gemm::create(plans::matmulProblem(request), workspaceBytes));
  return makeKernel([gemm = std::move(gemm)](const LibraryKernelArgs &args) {
    return gemm->run(args.buffers[kA], args.buffers[kB], args.buffers[kC],
                     bufferOf<uint8_t>(args, kWorkspace));
  });
}

namespace panel_matmul {

enum Operand { kA, kW, kC, kWorkspace };

using plans::PanelPlan;

namespace {

class PanelMatmul final : public LibraryKernel {
public:
  static PreparedKernel prepare(const KernelRequest &request);
  Status run(const LibraryKernelArgs &args) override;

private:
  explicit PanelMatmul(const KernelRequest &request)
      : plan(PanelPlan::of(request)), weight(StoredWeight::of(request)),
        tasks(plan.slots()), lda(request.constant("lda")),
        cType(request.type("c")), ldc(request.constant("ldc")),
        beta(static_cast<float>(request.constantAsDouble("beta"))) {}

  const void *denseA(const LibraryKernelArgs &args) const;
  Status runPanel(const LibraryKernelArgs &args, const void *a, int64_t panel,
                  int64_t slot) const;

  PanelPlan plan;
  StoredWeight weight;
  FallibleTasks tasks;
  int64_t lda;
  qlora_dtype cType;
  int64_t ldc;
  float beta;
  SlotProducts products;
};

} // namespace

PreparedKernel PanelMatmul::prepare(const KernelRequest &request) {
  std::unique_ptr<PanelMatmul> kernel(new PanelMatmul(request));
  const PanelPlan &plan = kernel->plan;
  const int64_t lastRows = plan.m % plan.rows;
  const int64_t lastColumns = plan.n % plan.columns;
  for (int64_t rows : {plan.rows, lastRows})
    for (int64_t columns : {plan.columns, lastColumns})
      if (rows > 0 && columns > 0)
        QLORA_RETURN_IF_ERROR(kernel->products.add(plan.product(rows, columns),
                                                   kernel->tasks.slots(),
                                                   plan.scratch.bytes));
  return std::unique_ptr<LibraryKernel>(std::move(kernel));
}

/// a, or a copy of it without gaps.
const void *PanelMatmul::denseA(const LibraryKernelArgs &args) const {
  const void *a = args.buffers[kA];
  uint8_t *const copy = plan.dense.in(args.buffers[kWorkspace]);
  if (!copy)
    return a;
  parallelRanges(plan.m, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      convertRun(plan.type, elementAt(a, plan.type, row * lda), plan.type,
                 elementAt(copy, plan.type, row * plan.k), plan.k);
  });
  return copy;
}

Status PanelMatmul::runPanel(const LibraryKernelArgs &args, const void *a,
                             int64_t panel, int64_t slot) const {
  uint8_t *const own =
      bufferOf<uint8_t>(args, kWorkspace) + plan.slotBytes * slot;
  uint8_t *const decoded = plan.decoded.in(own);
  auto *const sum = plan.sum.in<float>(own);
  const int64_t first = panel * plan.columns;
  const int64_t columns = std::min(plan.columns, plan.n - first);
  const StoredWeight::Part part =
      plan.isForward ? StoredWeight::Part{first, columns, 0, plan.k}
                     : StoredWeight::Part{0, plan.k, first, columns};
  weight.decodePart(args.buffers[kW], part, plan.type, decoded);
  for (int64_t row = 0; row < plan.m; row += plan.rows) {
    const int64_t rows = std::min(plan.rows, plan.m - row);
    QLORA_RETURN_IF_ERROR(products.find(plan.product(rows, columns), slot)
                              .run(elementAt(a, plan.type, row * plan.k),
                                   decoded, sum, plan.scratch.in(own)));
    for (int64_t i = 0; i < rows; ++i)
      narrowSum(sum + i * columns, beta, cType,
                elementAt(args.buffers[kC], cType, (row + i) * ldc + first),
                columns);
  }
  return Status::ok();
}

Status PanelMatmul::run(const LibraryKernelArgs &args) {
  const void *a = denseA(args);
  return tasks.run(plan.panels(), [&](int64_t panel, int64_t slot) {
    return runPanel(args, a, panel, slot);
  });
}

PreparedKernel onednn::prepare(const KernelRequest &request, uint64_t) {
  return PanelMatmul::prepare(request);
}

} // namespace panel_matmul
} // namespace qlora::cpu
