// SPDX-License-Identifier: MIT

// panel_matmul: decode some rows of W into the workspace, multiply with them
// while they are in cache, go on. And the reference.

#include <vector>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/Gemm.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora::cpu::panel_matmul {

enum Operand { kA, kW, kC, kWorkspace };

using requests::PanelPlan;

namespace {

/// One panel: rows [first, first + rows) of W and the product to run. Equal
/// products are shared.
struct Panel {
  int64_t first, rows;
  Gemm *gemm;
};

class PanelMatmul final : public LibraryKernel {
public:
  static PreparedKernel prepare(const KernelRequest &request,
                                uint64_t workspaceBytes);
  Status run(const LibraryKernelArgs &args) override;

private:
  explicit PanelMatmul(const KernelRequest &request)
      : plan(PanelPlan::of(request)), weight(StoredWeight::of(request)),
        problem(plan.product(request, plan.panelRows)),
        rows(request.constant("rows")), columns(request.constant("columns")),
        cType(dtypeOf(request, "c")), ldc(request.constant("ldc")),
        beta(static_cast<float>(request.constantAsDouble("beta"))) {}

  Status addPanels(const KernelRequest &request, uint64_t scratchBytes);
  StatusOr<Gemm *> productFor(const GemmProblem &wanted, uint64_t scratchBytes);

  PanelPlan plan;
  StoredWeight weight;
  GemmProblem problem;
  int64_t rows, columns;
  qlora_dtype cType;
  int64_t ldc;
  float beta;
  std::vector<Panel> panels;
  std::vector<std::pair<GemmProblem, std::unique_ptr<Gemm>>> products;
};

} // namespace

StatusOr<Gemm *> PanelMatmul::productFor(const GemmProblem &wanted,
                                         uint64_t scratchBytes) {
  for (const auto &[shape, gemm] : products)
    if (shape.n == wanted.n && shape.k == wanted.k && shape.beta == wanted.beta)
      return gemm.get();
  QLORA_ASSIGN_OR_RETURN(std::unique_ptr<Gemm> gemm,
                         Gemm::create(wanted, scratchBytes));
  products.emplace_back(wanted, std::move(gemm));
  return products.back().second.get();
}

Status PanelMatmul::addPanels(const KernelRequest &request,
                              uint64_t scratchBytes) {
  for (int64_t first = 0; first < rows; first += plan.panelRows) {
    const int64_t count = std::min(plan.panelRows, rows - first);
    GemmProblem wanted = plan.product(request, count);
    // Backward, the panels are a sum: only the first meets the old c.
    if (!plan.isForward && first > 0)
      wanted.beta = 1;
    QLORA_ASSIGN_OR_RETURN(Gemm * gemm, productFor(wanted, scratchBytes));
    panels.push_back({first, count, gemm});
  }
  return Status::ok();
}

PreparedKernel PanelMatmul::prepare(const KernelRequest &request,
                                    uint64_t workspaceBytes) {
  std::unique_ptr<PanelMatmul> kernel(new PanelMatmul(request));
  const uint64_t used = kernel->plan.decoded.bytes() + kernel->plan.sum.bytes();
  QLORA_RETURN_IF_ERROR(kernel->addPanels(request, workspaceBytes - used));
  return std::unique_ptr<LibraryKernel>(std::move(kernel));
}

Status PanelMatmul::run(const LibraryKernelArgs &args) {
  auto *decoded = bufferOf<uint8_t>(args, kWorkspace);
  uint8_t *const sum = decoded + plan.decoded.bytes();
  uint8_t *const scratch = sum + plan.sum.bytes();
  const bool hasSum = plan.sum.bytes() > 0;
  void *const c = hasSum ? sum : args.buffers[kC];
  for (const Panel &panel : panels) {
    weight.decode(args.buffers[kW], panel.first * columns, panel.rows * columns,
                  plan.decodedType, decoded);
    // Forward, a panel is columns of c; backward, columns of a.
    const int64_t aOffset = plan.isForward ? 0 : panel.first;
    const int64_t cOffset = plan.isForward ? panel.first : 0;
    QLORA_RETURN_IF_ERROR(
        panel.gemm->run(elementAt(args.buffers[kA], problem.a, aOffset),
                        decoded, elementAt(c, problem.c, cOffset), scratch));
  }
  if (!hasSum)
    return Status::ok();
  const auto *sums = reinterpret_cast<const float *>(sum);
  parallelRanges(problem.m, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      narrowSum(sums + row * columns, beta, cType,
                elementAt(args.buffers[kC], cType, row * ldc), columns);
  });
  return Status::ok();
}

PreparedKernel onednn::prepare(const KernelRequest &request,
                               uint64_t workspaceBytes) {
  return PanelMatmul::prepare(request, workspaceBytes);
}

/// Element (row, column) of W in a's type, as a panel would hold it.
static double weightElement(const StoredWeight &weight, const void *w,
                            int64_t index, qlora_dtype type) {
  const float value = weight.dtype == QLORA_DTYPE_NF4
                          ? NF4Tensor::of(weight.layout, weight.columns, w)
                                .element(index)
                          : loadElement(weight.dtype, w, index);
  uint32_t rounded = 0;
  storeElement(type, &rounded, 0, value);
  return loadElement(type, &rounded, 0);
}

PreparedKernel reference::prepare(const KernelRequest &request, uint64_t) {
  const StoredWeight weight = StoredWeight::of(request);
  const bool isForward = request.constant("transpose_w") != 0;
  const int64_t m = request.constant("m"), lda = request.constant("lda");
  const int64_t rows = request.constant("rows"), ldc = request.constant("ldc");
  const int64_t columns = request.constant("columns");
  const qlora_dtype a = dtypeOf(request, "a"), c = dtypeOf(request, "c");
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

} // namespace qlora::cpu::panel_matmul
