// SPDX-License-Identifier: MIT

// head_loss and head_loss_grad: the rows that have a label, gathered in
// chunks; each chunk is a product, one launch of Device/HeadLoss.cu, and with
// a gradient two more products. Which rows those are is only known on the
// device; how many there are at most the host says (labelledRows), so chunks
// that would be empty are not enqueued. All else is chosen when prepared.

#include <map>

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/Gemm.h"

namespace qlora::cuda {

namespace {
class HeadLoss final : public CudaKernel {
public:
  static PreparedCudaKernel prepare(const KernelRequest &request,
                                    CudaContext &context);
  Status enqueue(const CudaKernelArgs &args) override;

private:
  using Plan = plans::CudaHeadPlan;
  using Problem = plans::GemmProblem;

  /// Addresses by name: of the op, then of the workspace; null where the op or
  /// the launch has none.
  struct Operands {
    void *hidden, *w, *targets, *loss, *count, *correct, *dhidden, *dw;
    void *columns, *words, *dcolumns;
    void *rowLosses, *labelled, *logits, *gathered, *panel, *gradient, *scratch;
  };
  /// Labelled rows [first, first + rows).
  struct Chunk {
    int64_t first = 0, rows = 0;
    CudaLaunch gather, softmax, scatter;
    std::optional<CudaLaunch> cap, replace, take;
  };
  /// Words [first, first + words) of the vocabulary.
  struct Panel {
    int64_t first, words;
    std::optional<CudaLaunch> widen;
  };

  HeadLoss(const KernelRequest &request, CudaContext &context);
  Status addRowLaunches(const KernelRequest &request);
  Status addReplaced(const KernelRequest &request);
  Status addChunks(const KernelRequest &request);
  Status addPanels();
  Status addProducts();
  Status addProduct(const Problem &problem);
  /// Panels but the first add to the gradient.
  Problem hiddenGradient(const Chunk &chunk, const Panel &panel) const {
    return plan.hiddenGradientProduct(chunk.rows, panel.words, panel.first > 0);
  }

  Operands operandsOf(const CudaKernelArgs &args) const;
  StatusOr<const void *> panelOf(const Panel &panel, const Operands &operands,
                                 const CudaKernelArgs &args) const;
  Status enqueueChunk(const Chunk &chunk, const Operands &operands,
                      const CudaKernelArgs &args) const;
  Status enqueueGradients(const Chunk &chunk, const Operands &operands,
                          const CudaKernelArgs &args) const;
  Status observe(const Chunk &chunk, const Operands &operands,
                 const CudaKernelArgs &args) const;

  CudaContext &context;
  Plan plan;
  bool hasWeightGradient = false;
  CudaLaunch findLabelled, clearUnlabelled;
  std::optional<CudaLaunch> clearColumns;
  std::vector<Chunk> chunks;
  std::vector<CudaLaunch> sums; ///< by the number of chunks computed
  std::vector<Panel> panels;
  std::map<Problem, std::unique_ptr<CudaGemm>> products;
};
} // namespace

/// A matrix from its row `row` on.
static void *rowsAt(void *matrix, qlora_dtype dtype, int64_t row,
                    int64_t stride) {
  return movedBy(matrix, uint64_t(row * stride * (dtypeBits(dtype) / 8)));
}

HeadLoss::Operands HeadLoss::operandsOf(const CudaKernelArgs &args) const {
  const auto &b = args.buffers;
  void *const workspace = b.back();
  return {b[0],
          b[1],
          b[2],
          b[3],
          b[4],
          b[5],
          plan.hasGradient ? b[6] : nullptr,
          plan.hasGradient ? b[7] : nullptr,
          b[plan.hasGradient ? 8 : 6],
          b[plan.hasGradient ? 9 : 7],
          plan.hasGradient ? b[10] : nullptr,
          plan.rowLosses.in(workspace),
          plan.labelled.in(workspace),
          plan.logits.in(workspace),
          plan.gathered.in(workspace),
          plan.panel.in(workspace),
          plan.gradient.in(workspace),
          plan.scratch.in(workspace)};
}

/// The words of a panel in the type of the products.
StatusOr<const void *> HeadLoss::panelOf(const Panel &panel,
                                         const Operands &operands,
                                         const CudaKernelArgs &args) const {
  const void *words =
      rowsAt(operands.w, plan.weightType, panel.first, plan.hidden);
  if (!panel.widen)
    return words;
  QLORA_RETURN_IF_ERROR(panel.widen->enqueue(words, operands.panel, args));
  return static_cast<const void *>(operands.panel);
}

Status HeadLoss::enqueueChunk(const Chunk &chunk, const Operands &operands,
                              const CudaKernelArgs &args) const {
  void *const gathering[] = {operands.hidden, operands.labelled,
                             operands.gathered};
  QLORA_RETURN_IF_ERROR(chunk.gather.enqueue(gathering, args));
  for (const Panel &panel : panels) {
    QLORA_ASSIGN_OR_RETURN(const void *words, panelOf(panel, operands, args));
    QLORA_RETURN_IF_ERROR(
        products.at(plan.logitsProduct(chunk.rows, panel.words))
            ->enqueue(operands.gathered, words,
                     movedBy(operands.logits, uint64_t(panel.first) * 4),
                     operands.scratch, args.stream));
  }
  void *const replacing[] = {operands.logits, operands.labelled,
                             operands.columns, operands.words};
  if (chunk.replace)
    QLORA_RETURN_IF_ERROR(chunk.replace->enqueue(replacing, args));
  void *const capping[] = {operands.logits};
  if (chunk.cap)
    QLORA_RETURN_IF_ERROR(chunk.cap->enqueue(capping, args));
  if (args.observer && args.observer->onLogits)
    QLORA_RETURN_IF_ERROR(observe(chunk, operands, args));
  void *const buffers[] = {operands.logits, operands.targets, operands.labelled,
                           operands.rowLosses, operands.correct};
  QLORA_RETURN_IF_ERROR(chunk.softmax.enqueue(buffers, args));
  return plan.hasGradient ? enqueueGradients(chunk, operands, args)
                          : Status::ok();
}

Status HeadLoss::enqueueGradients(const Chunk &chunk, const Operands &operands,
                                  const CudaKernelArgs &args) const {
  void *const taking[] = {operands.logits, operands.labelled,
                          operands.dcolumns, operands.words};
  if (chunk.take)
    QLORA_RETURN_IF_ERROR(chunk.take->enqueue(taking, args));
  for (const Panel &panel : panels) {
    QLORA_ASSIGN_OR_RETURN(const void *words, panelOf(panel, operands, args));
    QLORA_RETURN_IF_ERROR(
        products.at(hiddenGradient(chunk, panel))
            ->enqueue(rowsAt(operands.logits, plan.productType, panel.first, 1),
                      words, operands.gradient, operands.scratch, args.stream));
  }
  void *const scattering[] = {operands.gradient, operands.labelled,
                              operands.dhidden};
  QLORA_RETURN_IF_ERROR(chunk.scatter.enqueue(scattering, args));
  if (!hasWeightGradient)
    return Status::ok();
  return products.at(plan.weightGradientProduct(chunk.rows))
      ->enqueue(operands.logits, operands.gathered, operands.dw,
                operands.scratch, args.stream);
}

/// Shows the rows of a chunk to the observer.
Status HeadLoss::observe(const Chunk &chunk, const Operands &operands,
                         const CudaKernelArgs &args) const {
  const CudaDriver &driver = context.driver();
  std::vector<float> logits(size_t(chunk.rows * plan.vocab));
  std::vector<int32_t> rows(size_t(chunk.rows));
  const auto read = [&](void *to, const void *from, size_t bytes) {
    return driver.check(
        driver.memcpyDtoHAsync(to, reinterpret_cast<CUdeviceptr>(from), bytes,
                               args.stream),
        "cuMemcpyDtoHAsync_v2");
  };
  QLORA_RETURN_IF_ERROR(
      read(logits.data(), operands.logits, logits.size() * 4));
  QLORA_RETURN_IF_ERROR(
      read(rows.data(), movedBy(operands.labelled, uint64_t(chunk.first) * 4),
           rows.size() * 4));
  QLORA_RETURN_IF_ERROR(driver.check(driver.streamSynchronize(args.stream),
                                     "cuStreamSynchronize"));
  std::erase(rows, -1); // they come last
  if (!rows.empty())
    args.observer->onLogits(
        {rows, logits.data(), 0, plan.vocab, plan.vocab});
  return Status::ok();
}

Status HeadLoss::enqueue(const CudaKernelArgs &args) {
  const Operands operands = operandsOf(args);
  void *const finding[] = {operands.targets, operands.labelled,
                           operands.correct};
  QLORA_RETURN_IF_ERROR(findLabelled.enqueue(finding, args));
  if (plan.hasGradient) {
    void *const clearing[] = {operands.targets, operands.dhidden};
    QLORA_RETURN_IF_ERROR(clearUnlabelled.enqueue(clearing, args));
    void *const columns[] = {operands.targets, operands.dcolumns};
    if (clearColumns)
      QLORA_RETURN_IF_ERROR(clearColumns->enqueue(columns, args));
  }
  const int64_t rows = std::min(args.labelledRows, plan.rows);
  const auto count = static_cast<size_t>(blocksOf(rows, plan.chunkRows));
  for (size_t i = 0; i < count; ++i)
    QLORA_RETURN_IF_ERROR(enqueueChunk(chunks[i], operands, args));
  void *const buffers[] = {operands.rowLosses, operands.labelled, operands.loss,
                           operands.count};
  return sums[count].enqueue(buffers, args);
}

// What is chosen at load -------------------------------------------------------

/// Threads of a block of Device/HeadLoss.cu.
static constexpr unsigned kHeadThreads = 512;

HeadLoss::HeadLoss(const KernelRequest &request, CudaContext &context)
    : context(context), plan(Plan::of(request)) {
  hasWeightGradient = plan.hasGradient && request.dtype("dw").has_value();
}

/// What is launched once, over all rows.
Status HeadLoss::addRowLaunches(const KernelRequest &request) {
  const int64_t rows[] = {plan.rows};
  QLORA_ASSIGN_OR_RETURN(findLabelled,
                         CudaLaunch::prepare(context, "qlora_head_labelled",
                                             {1, kHeadThreads}, rows));
  if (!plan.hasGradient)
    return Status::ok();
  const int64_t shape[] = {plan.hidden, request.constant("lddh")};
  QLORA_ASSIGN_OR_RETURN(
      clearUnlabelled,
      CudaLaunch::prepare(
          context,
          fmt::format("qlora_head_clear_{}", dtypeName(plan.dhiddenType)),
          {plan.rows, kHeadThreads}, shape));
  return Status::ok();
}

Status HeadLoss::addChunks(const KernelRequest &request) {
  const std::string softmax =
      plan.hasGradient
          ? fmt::format("qlora_head_loss_rows_{}", dtypeName(plan.productType))
          : "qlora_head_loss_rows";
  const std::string gather =
      fmt::format("qlora_head_gather_{}_{}", dtypeName(plan.hiddenType),
                  dtypeName(plan.productType));
  const std::string scatter =
      fmt::format("qlora_head_scatter_{}_{}", dtypeName(plan.gradientType),
                  dtypeName(plan.dhiddenType));
  const auto prepare = [&](const std::string &symbol, int64_t blocks,
                           std::initializer_list<int64_t> constants) {
    return CudaLaunch::prepare(context, symbol, {blocks, kHeadThreads},
                               {constants.begin(), constants.size()});
  };
  const int64_t cap = request.constant("cap");
  const int64_t lines = request.constant("lines");
  for (int64_t first = 0; first < plan.rows; first += plan.chunkRows) {
    Chunk chunk;
    chunk.first = first;
    chunk.rows = std::min(plan.chunkRows, plan.rows - first);
    QLORA_ASSIGN_OR_RETURN(chunk.gather,
                           prepare(gather, chunk.rows,
                                   {first, plan.hidden,
                                    request.constant("ldh")}));
    QLORA_ASSIGN_OR_RETURN(chunk.softmax,
                           prepare(softmax, chunk.rows,
                                   {first, plan.vocab, cap}));
    if (request.constantAsDouble("cap") != 0) {
      QLORA_ASSIGN_OR_RETURN(
          chunk.cap, prepare("qlora_head_cap", chunk.rows, {plan.vocab, cap}));
    }
    if (plan.hasGradient) {
      QLORA_ASSIGN_OR_RETURN(chunk.scatter,
                             prepare(scatter, chunk.rows,
                                     {first, plan.hidden,
                                      request.constant("lddh")}));
    }
    QLORA_ASSIGN_OR_RETURN(
        sums.emplace_back(),
        prepare("qlora_head_loss_sum", lines,
                {plan.rows, first, plan.rows / lines}));
    chunks.push_back(std::move(chunk));
  }
  QLORA_ASSIGN_OR_RETURN(
      sums.emplace_back(),
      prepare("qlora_head_loss_sum", lines,
              {plan.rows, plan.rows, plan.rows / lines}));
  return Status::ok();
}

/// Logits that are given, and their gradient.
Status HeadLoss::addReplaced(const KernelRequest &request) {
  const int64_t replaced = request.constant("replaced");
  if (replaced == 0)
    return Status::ok();
  const std::string type(dtypeName(request.type("columns")));
  for (Chunk &chunk : chunks) {
    const int64_t constants[] = {chunk.first, plan.vocab, replaced};
    const auto prepare = [&](const std::string &symbol) {
      return CudaLaunch::prepare(context, symbol, {chunk.rows, kHeadThreads},
                                 constants);
    };
    QLORA_ASSIGN_OR_RETURN(chunk.replace,
                           prepare("qlora_head_replace_" + type));
    if (plan.hasGradient) {
      QLORA_ASSIGN_OR_RETURN(
          chunk.take, prepare(fmt::format("qlora_head_take_{}_{}",
                                          dtypeName(plan.productType), type)));
    }
  }
  if (!plan.hasGradient)
    return Status::ok();
  const int64_t shape[] = {replaced, replaced};
  QLORA_ASSIGN_OR_RETURN(clearColumns,
                         CudaLaunch::prepare(context, "qlora_head_clear_" + type,
                                             {plan.rows, kHeadThreads}, shape));
  return Status::ok();
}

Status HeadLoss::addPanels() {
  for (int64_t first = 0; first < plan.vocab; first += plan.panelRows) {
    Panel panel;
    panel.first = first;
    panel.words = std::min(plan.panelRows, plan.vocab - first);
    if (plan.hasPanels()) {
      QLORA_ASSIGN_OR_RETURN(
          panel.widen,
          prepareConversion(
              context, plan.weightType, plan.productType,
              {panel.words, plan.hidden, plan.hidden, plan.hidden}));
    }
    panels.push_back(std::move(panel));
  }
  return Status::ok();
}

Status HeadLoss::addProduct(const Problem &problem) {
  std::unique_ptr<CudaGemm> &entry = products[problem];
  if (entry)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(
      entry, CudaGemm::create(context, problem, plan.scratch.bytes));
  return Status::ok();
}

/// The first and the last chunk have all shapes that there are.
Status HeadLoss::addProducts() {
  for (const Chunk *chunk : {&chunks.front(), &chunks.back()}) {
    for (const Panel &panel : panels) {
      QLORA_RETURN_IF_ERROR(
          addProduct(plan.logitsProduct(chunk->rows, panel.words)));
      if (plan.hasGradient)
        QLORA_RETURN_IF_ERROR(addProduct(hiddenGradient(*chunk, panel)));
    }
    if (hasWeightGradient)
      QLORA_RETURN_IF_ERROR(
          addProduct(plan.weightGradientProduct(chunk->rows)));
  }
  return Status::ok();
}

PreparedCudaKernel HeadLoss::prepare(const KernelRequest &request,
                                     CudaContext &context) {
  std::unique_ptr<HeadLoss> kernel(new HeadLoss(request, context));
  QLORA_RETURN_IF_ERROR(kernel->addRowLaunches(request));
  QLORA_RETURN_IF_ERROR(kernel->addChunks(request));
  QLORA_RETURN_IF_ERROR(kernel->addReplaced(request));
  QLORA_RETURN_IF_ERROR(kernel->addPanels());
  QLORA_RETURN_IF_ERROR(kernel->addProducts());
  return std::unique_ptr<CudaKernel>(std::move(kernel));
}

PreparedCudaKernel head_loss::cuda::prepare(const KernelRequest &request,
                                            CudaContext &context) {
  return HeadLoss::prepare(request, context);
}

PreparedCudaKernel head_loss_grad::cuda::prepare(const KernelRequest &request,
                                                 CudaContext &context) {
  return HeadLoss::prepare(request, context);
}

} // namespace qlora::cuda
