// SPDX-License-Identifier: MIT

// head_loss and head_loss_grad: chunks of rows, each a product, one launch of
// Device/HeadLoss.cu, and with a gradient two more products. Everything is
// chosen when prepared; which rows have labels is only known on the device, so
// all rows take part, and those without a label get zeros.

#include <map>
#include <tuple>

#include "runtime/Kernels/Cuda/Gemm.h"

namespace qlora::cuda {

using requests::CudaHeadPlan;
using requests::GemmProblem;

namespace {

constexpr unsigned kHeadThreads = 512; // as in Device/HeadLoss.cu
constexpr int32_t kNoTarget = -100;

/// Buffers by name; null where the op or the launch has none.
struct Operands {
  void *hidden, *w, *targets, *loss, *count, *correct;
  void *dhidden = nullptr, *dw = nullptr;
};

/// The parts of the workspace.
struct Parts {
  void *rowLosses, *logits, *widened, *panel, *gradient, *scratch;
};

/// Rows [first, first + rows) of the input.
struct Chunk {
  int64_t first, rows;
  CudaLaunch softmax;
  std::optional<CudaConversion> widenHidden, storeGradient;
};

/// Words [first, first + words) of the vocabulary.
struct Panel {
  int64_t first, words;
  std::optional<CudaConversion> widen;
};

class HeadLoss final : public CudaKernel {
public:
  static PreparedCudaKernel prepare(const KernelRequest &request,
                                    CudaContext &context);
  Status enqueue(const CudaKernelArgs &args) override;

private:
  enum class Product {
    kLogits,
    kHiddenGradient,
    kAddedHiddenGradient,
    kWeight
  };
  /// Which product, of how many rows and words.
  using Key = std::tuple<Product, int64_t, int64_t>;

  HeadLoss(const KernelRequest &request, CudaContext &context);
  Status addChunks();
  Status addPanels();
  Status addProducts();
  Status addProduct(Product product, int64_t rows, int64_t words);
  GemmProblem problemOf(Product product, int64_t rows, int64_t words) const;
  const CudaGemm &gemm(Product product, int64_t rows, int64_t words) const {
    return *products.at({product, rows, words});
  }

  Operands operandsOf(const CudaKernelArgs &args) const;
  Parts partsOf(const CudaKernelArgs &args) const;
  /// The rows of hidden, or of dhidden, that a chunk begins with.
  void *rowsAt(void *matrix, qlora_dtype dtype, int64_t row,
               int64_t stride) const {
    return movedBy(matrix, uint64_t(row * stride * (dtypeBits(dtype) / 8)));
  }
  StatusOr<const void *> panelOf(const Panel &panel, const Operands &operands,
                                 const Parts &parts,
                                 const CudaKernelArgs &args) const;
  Status enqueueChunk(const Chunk &chunk, const Operands &operands,
                      const Parts &parts, const CudaKernelArgs &args) const;
  Status enqueueGradients(const Chunk &chunk, const void *hidden,
                          const Operands &operands, const Parts &parts,
                          const CudaKernelArgs &args) const;
  Status observe(const Chunk &chunk, const Operands &operands,
                 const Parts &parts, const CudaKernelArgs &args) const;

  CudaContext &context;
  CudaHeadPlan plan;
  int64_t lddh = 0;
  qlora_dtype dhiddenType = QLORA_DTYPE_F32;
  bool hasWeightGradient = false;
  std::vector<Chunk> chunks;
  std::vector<Panel> panels;
  std::map<Key, std::unique_ptr<CudaGemm>> products;
  CudaLaunch sum;
};

} // namespace

HeadLoss::HeadLoss(const KernelRequest &request, CudaContext &context)
    : context(context), plan(CudaHeadPlan::of(request)) {
  if (!plan.hasGradient)
    return;
  lddh = request.constant("lddh");
  dhiddenType = cudaDtypeOf(request, "dhidden");
  hasWeightGradient = request.dtype("dw").has_value();
}

Status HeadLoss::addChunks() {
  const char *symbol = !plan.hasGradient ? "qlora_head_loss_rows"
                       : plan.productType == QLORA_DTYPE_F32
                           ? "qlora_head_loss_rows_f32"
                           : "qlora_head_loss_rows_bf16";
  for (int64_t first = 0; first < plan.rows; first += plan.chunkRows) {
    Chunk chunk;
    chunk.first = first;
    chunk.rows = std::min(plan.chunkRows, plan.rows - first);
    const int64_t constants[] = {first, plan.vocab};
    QLORA_ASSIGN_OR_RETURN(chunk.softmax,
                           CudaLaunch::prepare(context, symbol,
                                               {chunk.rows, kHeadThreads},
                                               constants));
    if (plan.widened.bytes() > 0) {
      QLORA_ASSIGN_OR_RETURN(chunk.widenHidden,
                             CudaConversion::prepare(context, plan.hiddenType,
                                                     QLORA_DTYPE_F32,
                                                     {chunk.rows, plan.hidden,
                                                      plan.ldh, plan.hidden}));
    }
    if (plan.gradient.bytes() > 0) {
      QLORA_ASSIGN_OR_RETURN(chunk.storeGradient,
                             CudaConversion::prepare(
                                 context, QLORA_DTYPE_F32, dhiddenType,
                                 {chunk.rows, plan.hidden, plan.hidden, lddh}));
    }
    chunks.push_back(std::move(chunk));
  }
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
          CudaConversion::prepare(
              context, plan.weightType, plan.productType,
              {panel.words, plan.hidden, plan.hidden, plan.hidden}));
    }
    panels.push_back(std::move(panel));
  }
  return Status::ok();
}

GemmProblem HeadLoss::problemOf(Product product, int64_t rows,
                                int64_t words) const {
  if (product == Product::kLogits)
    return plan.logitsProduct(rows, words);
  if (product == Product::kWeight)
    return plan.weightGradientProduct(rows);
  const bool isDirect = plan.gradient.bytes() == 0;
  return plan.hiddenGradientProduct(
      rows, words, product == Product::kAddedHiddenGradient,
      isDirect ? dhiddenType : QLORA_DTYPE_F32, isDirect ? lddh : plan.hidden);
}

Status HeadLoss::addProduct(Product product, int64_t rows, int64_t words) {
  std::unique_ptr<CudaGemm> &entry = products[{product, rows, words}];
  if (entry)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(
      entry, CudaGemm::create(context, problemOf(product, rows, words),
                              plan.scratch.bytes()));
  return Status::ok();
}

/// The first and the last chunk and panel have all shapes that there are.
Status HeadLoss::addProducts() {
  for (const Chunk *chunk : {&chunks.front(), &chunks.back()}) {
    for (const Panel *panel : {&panels.front(), &panels.back()}) {
      const int64_t rows = chunk->rows, words = panel->words;
      QLORA_RETURN_IF_ERROR(addProduct(Product::kLogits, rows, words));
      if (!plan.hasGradient)
        continue;
      QLORA_RETURN_IF_ERROR(addProduct(Product::kHiddenGradient, rows, words));
      QLORA_RETURN_IF_ERROR(
          addProduct(Product::kAddedHiddenGradient, rows, words));
    }
    if (hasWeightGradient)
      QLORA_RETURN_IF_ERROR(
          addProduct(Product::kWeight, chunk->rows, plan.vocab));
  }
  return Status::ok();
}

PreparedCudaKernel HeadLoss::prepare(const KernelRequest &request,
                                     CudaContext &context) {
  std::unique_ptr<HeadLoss> kernel(new HeadLoss(request, context));
  QLORA_RETURN_IF_ERROR(kernel->addChunks());
  QLORA_RETURN_IF_ERROR(kernel->addPanels());
  QLORA_RETURN_IF_ERROR(kernel->addProducts());
  const int64_t constants[] = {kernel->plan.rows};
  QLORA_ASSIGN_OR_RETURN(kernel->sum,
                         CudaLaunch::prepare(context, "qlora_head_loss_sum",
                                             {1, kHeadThreads}, constants));
  return std::unique_ptr<CudaKernel>(std::move(kernel));
}

Operands HeadLoss::operandsOf(const CudaKernelArgs &args) const {
  Operands operands = {args.buffers[0], args.buffers[1], args.buffers[2],
                       args.buffers[3], args.buffers[4], args.buffers[5]};
  if (plan.hasGradient) {
    operands.dhidden = args.buffers[6];
    operands.dw = args.buffers[7];
  }
  return operands;
}

Parts HeadLoss::partsOf(const CudaKernelArgs &args) const {
  void *next = args.buffers.back();
  const auto take = [&](requests::Size size) {
    void *part = next;
    next = movedBy(next, size.bytes());
    return part;
  };
  Parts parts;
  parts.rowLosses = take(plan.rowLosses);
  parts.logits = take(plan.logits);
  parts.widened = take(plan.widened);
  parts.panel = take(plan.panel);
  parts.gradient = take(plan.gradient);
  parts.scratch = next;
  return parts;
}

/// The words of a panel in the type of the products.
StatusOr<const void *> HeadLoss::panelOf(const Panel &panel,
                                         const Operands &operands,
                                         const Parts &parts,
                                         const CudaKernelArgs &args) const {
  const void *words =
      rowsAt(operands.w, plan.weightType, panel.first, plan.hidden);
  if (!panel.widen)
    return words;
  QLORA_RETURN_IF_ERROR(panel.widen->enqueue(words, parts.panel, args));
  return static_cast<const void *>(parts.panel);
}

Status HeadLoss::enqueueChunk(const Chunk &chunk, const Operands &operands,
                              const Parts &parts,
                              const CudaKernelArgs &args) const {
  const void *hidden =
      rowsAt(operands.hidden, plan.hiddenType, chunk.first, plan.ldh);
  if (chunk.widenHidden) {
    QLORA_RETURN_IF_ERROR(
        chunk.widenHidden->enqueue(hidden, parts.widened, args));
    hidden = parts.widened;
  }
  for (const Panel &panel : panels) {
    QLORA_ASSIGN_OR_RETURN(const void *words,
                           panelOf(panel, operands, parts, args));
    QLORA_RETURN_IF_ERROR(
        gemm(Product::kLogits, chunk.rows, panel.words)
            .enqueue(hidden, words,
                     movedBy(parts.logits, uint64_t(panel.first) * 4),
                     parts.scratch, args.stream));
  }
  if (args.observer && args.observer->onLogits)
    QLORA_RETURN_IF_ERROR(observe(chunk, operands, parts, args));
  void *const buffers[] = {parts.logits, operands.targets, parts.rowLosses,
                           operands.correct};
  QLORA_RETURN_IF_ERROR(chunk.softmax.enqueue(buffers, args));
  return plan.hasGradient
             ? enqueueGradients(chunk, hidden, operands, parts, args)
             : Status::ok();
}

Status HeadLoss::enqueueGradients(const Chunk &chunk, const void *hidden,
                                  const Operands &operands, const Parts &parts,
                                  const CudaKernelArgs &args) const {
  void *dhidden = rowsAt(operands.dhidden, dhiddenType, chunk.first, lddh);
  void *sum = chunk.storeGradient ? parts.gradient : dhidden;
  for (const Panel &panel : panels) {
    QLORA_ASSIGN_OR_RETURN(const void *words,
                           panelOf(panel, operands, parts, args));
    const Product product = panel.first == 0 ? Product::kHiddenGradient
                                             : Product::kAddedHiddenGradient;
    QLORA_RETURN_IF_ERROR(
        gemm(product, chunk.rows, panel.words)
            .enqueue(rowsAt(parts.logits, plan.productType, panel.first, 1),
                     words, sum, parts.scratch, args.stream));
  }
  if (chunk.storeGradient)
    QLORA_RETURN_IF_ERROR(chunk.storeGradient->enqueue(sum, dhidden, args));
  if (!hasWeightGradient)
    return Status::ok();
  return gemm(Product::kWeight, chunk.rows, plan.vocab)
      .enqueue(parts.logits, hidden, operands.dw, parts.scratch, args.stream);
}

/// Shows the labelled rows of a chunk to the observer.
Status HeadLoss::observe(const Chunk &chunk, const Operands &operands,
                         const Parts &parts, const CudaKernelArgs &args) const {
  const CudaDriver &driver = context.driver();
  std::vector<float> logits(size_t(chunk.rows * plan.vocab));
  std::vector<int32_t> targets(size_t(chunk.rows)), rows;
  const auto read = [&](void *to, const void *from, size_t bytes) {
    return driver.check(
        driver.memcpyDtoHAsync(to, reinterpret_cast<CUdeviceptr>(from), bytes,
                               args.stream),
        "cuMemcpyDtoHAsync_v2");
  };
  QLORA_RETURN_IF_ERROR(read(logits.data(), parts.logits, logits.size() * 4));
  QLORA_RETURN_IF_ERROR(
      read(targets.data(), movedBy(operands.targets, uint64_t(chunk.first) * 4),
           targets.size() * 4));
  QLORA_RETURN_IF_ERROR(driver.check(driver.streamSynchronize(args.stream),
                                     "cuStreamSynchronize"));
  for (int64_t row = 0; row < chunk.rows; ++row) {
    if (targets[size_t(row)] == kNoTarget)
      continue;
    std::copy_n(logits.begin() + row * plan.vocab, plan.vocab,
                logits.begin() + int64_t(rows.size()) * plan.vocab);
    rows.push_back(static_cast<int32_t>(chunk.first + row));
  }
  if (!rows.empty())
    args.observer->onLogits(rows, logits.data(), plan.vocab);
  return Status::ok();
}

Status HeadLoss::enqueue(const CudaKernelArgs &args) {
  const Operands operands = operandsOf(args);
  const Parts parts = partsOf(args);
  for (const Chunk &chunk : chunks)
    QLORA_RETURN_IF_ERROR(enqueueChunk(chunk, operands, parts, args));
  void *const buffers[] = {parts.rowLosses, operands.targets, operands.loss,
                           operands.count};
  return sum.enqueue(buffers, args);
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
