// SPDX-License-Identifier: MIT

// matmul: one prepared GEMM. panel_matmul: a thread decodes the range of W for
// a panel of c's columns, multiplies, and rounds the sums into c, all in its
// cache. For several launches with the same weight, it decodes a panel once and
// multiplies for one launch after another.

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

struct PanelMatmul final : LibraryKernel {
  explicit PanelMatmul(const KernelRequest &request)
      : plan(PanelPlan::of(request)), weight(StoredWeight::of(request)),
        tasks(plan.slots()), lda(request.constant("lda")),
        cType(request.type("c")), ldc(request.constant("ldc")),
        beta(static_cast<float>(request.constantAsDouble("beta"))) {}

  Status run(const LibraryKernelArgs &args) override {
    const LaunchTogether alone{this, &args};
    return runTogether({&alone, 1});
  }
  std::string sharedForm() const override;
  Status runTogether(std::span<const LaunchTogether> launches) override;
  void makeDense(const LibraryKernelArgs &args) const;
  const void *denseA(const LibraryKernelArgs &args) const;
  void decodePanel(const LibraryKernelArgs &args, int64_t panel,
                   uint8_t *own) const;
  Status multiplyPanel(const LibraryKernelArgs &args, int64_t panel,
                       int64_t slot, uint8_t *own) const;
  int64_t columnsOf(int64_t panel) const {
    return std::min(plan.columns, plan.n - panel * plan.columns);
  }

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

PreparedKernel onednn::prepare(const KernelRequest &request, uint64_t) {
  auto kernel = std::make_unique<PanelMatmul>(request);
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

/// Returns operand a, or the copy without gaps that makeDense() wrote.
const void *PanelMatmul::denseA(const LibraryKernelArgs &args) const {
  uint8_t *const copy = plan.dense.in(args.buffers[kWorkspace]);
  return copy ? copy : args.buffers[kA];
}

void PanelMatmul::makeDense(const LibraryKernelArgs &args) const {
  uint8_t *const copy = plan.dense.in(args.buffers[kWorkspace]);
  if (!copy)
    return;
  parallelRanges(plan.m, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      convertRun(plan.type, elementAt(args.buffers[kA], plan.type, row * lda),
                 plan.type, elementAt(copy, plan.type, row * plan.k), plan.k);
  });
}

void PanelMatmul::decodePanel(const LibraryKernelArgs &args, int64_t panel,
                              uint8_t *own) const {
  const int64_t first = panel * plan.columns, columns = columnsOf(panel);
  const StoredWeight::Part part =
      plan.isForward ? StoredWeight::Part{first, columns, 0, plan.k}
                     : StoredWeight::Part{0, plan.k, first, columns};
  weight.decodePart(args.buffers[kW], part, plan.type, plan.decoded.in(own));
}

/// Multiplies all rows of a with the decoded panel in the slot's scratch `own`.
Status PanelMatmul::multiplyPanel(const LibraryKernelArgs &args, int64_t panel,
                                  int64_t slot, uint8_t *own) const {
  auto *const sum = plan.sum.in<float>(own);
  const void *const a = denseA(args);
  const int64_t first = panel * plan.columns, columns = columnsOf(panel);
  for (int64_t row = 0; row < plan.m; row += plan.rows) {
    const int64_t rows = std::min(plan.rows, plan.m - row);
    QLORA_RETURN_IF_ERROR(products.find(plan.product(rows, columns), slot)
                              .run(elementAt(a, plan.type, row * plan.k),
                                   plan.decoded.in(own), sum,
                                   plan.scratch.in(own)));
    for (int64_t i = 0; i < rows; ++i)
      narrowSum(sum + i * columns, beta, cType,
                elementAt(args.buffers[kC], cType, (row + i) * ldc + first),
                columns);
  }
  return Status::ok();
}

/// Launches with at least this many rows do not share decoded panels: decoding
/// takes less than 1/20 of the GEMM's time, and the rows of all launches exceed
/// the caches. Measured on Zen 5 with a 0.5B model (32 and 512 rows).
static constexpr int64_t kManyRows = 256;

/// Names all properties that determine the panels and their decoded values.
std::string PanelMatmul::sharedForm() const {
  if (plan.m >= kManyRows)
    return {};
  return fmt::format("panel_matmul {} {} {} {} {} {}", plan.isForward, plan.n,
                     plan.k, plan.columns, int(plan.type), int(weight.dtype));
}

/// The workspaces of the launches may be the same memory, so all launches use
/// the slots of the largest one. The decoded panel, which has one size in all
/// launches, comes first in a slot; sums and scratch of smaller launches fit
/// after it. If makeDense() copies an operand of a launch, the launches run one
/// after the other.
Status PanelMatmul::runTogether(std::span<const LaunchTogether> launches) {
  const auto kernelOf = [](const LaunchTogether &launch) -> PanelMatmul & {
    return static_cast<PanelMatmul &>(*launch.kernel);
  };
  const bool hasCopies = std::ranges::any_of(launches, [&](const auto &launch) {
    return kernelOf(launch).plan.dense.bytes > 0;
  });
  if (hasCopies && launches.size() > 1)
    return LibraryKernel::runTogether(launches);
  const LaunchTogether &largest =
      *std::ranges::max_element(launches, {}, [&](const auto &launch) {
        return kernelOf(launch).plan.slotBytes;
      });
  const uint64_t slotBytes = kernelOf(largest).plan.slotBytes;
  auto *const slots = bufferOf<uint8_t>(*largest.args, kWorkspace);
  kernelOf(largest).makeDense(*largest.args);
  return tasks.run(plan.panels(), [&](int64_t panel, int64_t slot) {
    uint8_t *const own = slots + slotBytes * static_cast<uint64_t>(slot);
    decodePanel(*largest.args, panel, own);
    for (const LaunchTogether &launch : launches)
      QLORA_RETURN_IF_ERROR(
          kernelOf(launch).multiplyPanel(*launch.args, panel, slot, own));
    return Status::ok();
  });
}

} // namespace panel_matmul
} // namespace qlora::cpu
