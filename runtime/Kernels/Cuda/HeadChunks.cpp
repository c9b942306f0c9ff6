// SPDX-License-Identifier: MIT

#include "runtime/Kernels/Cuda/HeadChunks.h"

#include <algorithm>

#include <fmt/format.h>

namespace qlora::cuda {

/// Returns the address of row `row`; `stride` is in elements.
static void *rowsAt(void *matrix, qlora_dtype dtype, int64_t row,
                    int64_t stride) {
  return movedBy(matrix, uint64_t(row * stride * (dtypeBits(dtype) / 8)));
}

void HeadChunks::place(void *workspace, HeadBuffers &buffers) const {
  buffers.labelled = plan.labelled.in(workspace);
  buffers.logits = plan.logits.in(workspace);
  buffers.gathered = plan.gathered.in(workspace);
  buffers.panel = plan.panel.in(workspace);
  buffers.gradient = plan.gradient.in(workspace);
  buffers.scratch = plan.scratch.in(workspace);
}

Status HeadChunks::listLabelled(void *correct, const HeadBuffers &buffers,
                                const CudaKernelArgs &args) const {
  void *const finding[] = {buffers.targets, buffers.labelled, correct};
  return findLabelled.enqueue(finding, args);
}

Status HeadChunks::clearUnlabelled(const HeadBuffers &buffers,
                                   const CudaKernelArgs &args) const {
  void *const clearing[] = {buffers.targets, buffers.dhidden};
  return clear.enqueue(clearing, args);
}

/// Returns a panel of w in the GEMMs' type; converts it if necessary.
StatusOr<const void *> HeadChunks::wordsOf(const Panel &panel,
                                           const HeadBuffers &buffers,
                                           const CudaKernelArgs &args) const {
  const void *words =
      rowsAt(buffers.w, plan.weightType, panel.first, plan.hidden);
  if (!panel.widen)
    return words;
  QLORA_RETURN_IF_ERROR(panel.widen->enqueue(words, buffers.panel, args));
  return static_cast<const void *>(buffers.panel);
}

Status HeadChunks::computeLogits(const HeadChunk &chunk,
                                 const HeadBuffers &buffers,
                                 const CudaKernelArgs &args) const {
  void *const gathering[] = {buffers.hidden, buffers.labelled,
                             buffers.gathered};
  QLORA_RETURN_IF_ERROR(chunk.gather.enqueue(gathering, args));
  for (const Panel &panel : panels) {
    QLORA_ASSIGN_OR_RETURN(const void *words, wordsOf(panel, buffers, args));
    QLORA_RETURN_IF_ERROR(
        products.at(plan.logitsProduct(chunk.rows, panel.words))
            ->enqueue(buffers.gathered, words,
                      movedBy(buffers.logits, uint64_t(panel.first) * 4),
                      buffers.scratch, args.stream));
  }
  return Status::ok();
}

Status HeadChunks::capLogits(const HeadChunk &chunk, const HeadBuffers &buffers,
                             const CudaKernelArgs &args) const {
  void *const capping[] = {buffers.logits};
  return chunk.cap ? chunk.cap->enqueue(capping, args) : Status::ok();
}

Status HeadChunks::computeGradients(const HeadChunk &chunk,
                                    const HeadBuffers &buffers,
                                    const CudaKernelArgs &args) const {
  for (const Panel &panel : panels) {
    QLORA_ASSIGN_OR_RETURN(const void *words, wordsOf(panel, buffers, args));
    QLORA_RETURN_IF_ERROR(
        products.at(hiddenGradient(chunk, panel))
            ->enqueue(rowsAt(buffers.logits, plan.productType, panel.first, 1),
                      words, buffers.gradient, buffers.scratch, args.stream));
  }
  void *const scattering[] = {buffers.gradient, buffers.labelled,
                              buffers.dhidden};
  QLORA_RETURN_IF_ERROR(chunk.scatter->enqueue(scattering, args));
  if (!plan.hasWeightGradient)
    return Status::ok();
  return products.at(plan.weightGradientProduct(chunk.rows))
      ->enqueue(buffers.logits, buffers.gathered, buffers.dw, buffers.scratch,
                args.stream);
}

// Prepared at load -----------------------------------------------------------

/// Prepares the launches that run once per call, over all rows.
Status HeadChunks::addRowLaunches(int64_t stride) {
  const int64_t rows[] = {plan.rows};
  QLORA_ASSIGN_OR_RETURN(findLabelled,
                         CudaLaunch::prepare(context, "qlora_head_labelled",
                                             {1, kHeadThreads}, rows));
  if (!plan.hasGradient)
    return Status::ok();
  const int64_t shape[] = {plan.hidden, stride};
  QLORA_ASSIGN_OR_RETURN(
      clear, CudaLaunch::prepare(context,
                                 fmt::format("qlora_head_clear_{}",
                                             dtypeName(plan.dhiddenType)),
                                 {plan.rows, kHeadThreads}, shape));
  return Status::ok();
}

Status HeadChunks::addChunks(const KernelRequest &request, int64_t stride) {
  const std::string gather =
      fmt::format("qlora_head_gather_{}_{}", dtypeName(plan.hiddenType),
                  dtypeName(plan.productType));
  const std::string scatter =
      fmt::format("qlora_head_scatter_{}_{}", dtypeName(plan.gradientType),
                  dtypeName(plan.dhiddenType));
  for (int64_t first = 0; first < plan.rows; first += plan.chunkRows) {
    HeadChunk chunk;
    chunk.first = first;
    chunk.rows = std::min(plan.chunkRows, plan.rows - first);
    const int64_t gathering[] = {first, plan.hidden, request.constant("ldh")};
    QLORA_ASSIGN_OR_RETURN(chunk.gather, prepareRows(chunk, gather, gathering));
    const int64_t capping[] = {plan.vocab, request.constant("cap")};
    if (request.constantAsDouble("cap") != 0) {
      QLORA_ASSIGN_OR_RETURN(chunk.cap,
                             prepareRows(chunk, "qlora_head_cap", capping));
    }
    const int64_t scattering[] = {first, plan.hidden, stride};
    if (plan.hasGradient) {
      QLORA_ASSIGN_OR_RETURN(chunk.scatter,
                             prepareRows(chunk, scatter, scattering));
    }
    chunks.push_back(std::move(chunk));
  }
  return Status::ok();
}

Status HeadChunks::addPanels() {
  for (int64_t first = 0; first < plan.vocab; first += plan.panelRows) {
    Panel panel;
    panel.first = first;
    panel.words = std::min(plan.panelRows, plan.vocab - first);
    if (plan.hasPanels()) {
      QLORA_ASSIGN_OR_RETURN(panel.widen,
                             prepareConversion(context, plan.weightType,
                                               plan.productType,
                                               {panel.words, plan.hidden,
                                                plan.hidden, plan.hidden}));
    }
    panels.push_back(std::move(panel));
  }
  return Status::ok();
}

Status HeadChunks::addProduct(const Problem &problem) {
  std::unique_ptr<CudaGemm> &entry = products[problem];
  if (entry)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(
      entry, CudaGemm::create(context, problem, plan.scratch.bytes));
  return Status::ok();
}

/// Prepares the GEMMs. All chunks except the last have the same shapes.
Status HeadChunks::addProducts() {
  for (const HeadChunk *chunk : {&chunks.front(), &chunks.back()}) {
    for (const Panel &panel : panels) {
      QLORA_RETURN_IF_ERROR(
          addProduct(plan.logitsProduct(chunk->rows, panel.words)));
      if (plan.hasGradient)
        QLORA_RETURN_IF_ERROR(addProduct(hiddenGradient(*chunk, panel)));
    }
    if (plan.hasWeightGradient)
      QLORA_RETURN_IF_ERROR(
          addProduct(plan.weightGradientProduct(chunk->rows)));
  }
  return Status::ok();
}

Status HeadChunks::prepare(const KernelRequest &request, int64_t stride) {
  QLORA_RETURN_IF_ERROR(addRowLaunches(stride));
  QLORA_RETURN_IF_ERROR(addChunks(request, stride));
  QLORA_RETURN_IF_ERROR(addPanels());
  return addProducts();
}

Status HeadChunks::observe(const HeadChunk &chunk, LogitsBlock block,
                           const HeadBuffers &buffers,
                           const CudaKernelArgs &args) const {
  if (!args.observer || !args.observer->onLogits)
    return Status::ok();
  const CudaDriver &driver = context.driver();
  std::vector<float> logits(size_t(chunk.rows * plan.vocab));
  std::vector<int32_t> rows(size_t(chunk.rows));
  const auto read = [&](void *to, const void *from, size_t bytes) {
    return driver.check(
        driver.memcpyDtoHAsync(to, reinterpret_cast<CUdeviceptr>(from), bytes,
                               args.stream),
        "cuMemcpyDtoHAsync_v2");
  };
  QLORA_RETURN_IF_ERROR(read(logits.data(), buffers.logits, logits.size() * 4));
  QLORA_RETURN_IF_ERROR(
      read(rows.data(), movedBy(buffers.labelled, uint64_t(chunk.first) * 4),
           rows.size() * 4));
  QLORA_RETURN_IF_ERROR(driver.check(driver.streamSynchronize(args.stream),
                                     "cuStreamSynchronize"));
  std::erase(rows, -1); // -1 fills the end of the list
  block.rows = rows;
  block.logits = logits.data();
  block.words = plan.vocab;
  if (!rows.empty())
    args.observer->onLogits(block);
  return Status::ok();
}

} // namespace qlora::cuda
