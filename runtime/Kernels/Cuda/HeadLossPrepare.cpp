// SPDX-License-Identifier: MIT

// What head_loss and head_loss_grad choose at load.

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/HeadLoss.h"

namespace qlora::cuda {

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
  for (int64_t first = 0; first < plan.rows; first += plan.chunkRows) {
    Chunk chunk;
    chunk.first = first;
    chunk.rows = std::min(plan.chunkRows, plan.rows - first);
    QLORA_ASSIGN_OR_RETURN(chunk.gather,
                           prepare(gather, chunk.rows,
                                   {first, plan.hidden,
                                    request.constant("ldh")}));
    QLORA_ASSIGN_OR_RETURN(chunk.softmax,
                           prepare(softmax, chunk.rows, {first, plan.vocab}));
    if (plan.hasGradient) {
      QLORA_ASSIGN_OR_RETURN(chunk.scatter,
                             prepare(scatter, chunk.rows,
                                     {first, plan.hidden,
                                      request.constant("lddh")}));
    }
    QLORA_ASSIGN_OR_RETURN(
        sums.emplace_back(),
        prepare("qlora_head_loss_sum", 1, {plan.rows, first}));
    chunks.push_back(std::move(chunk));
  }
  QLORA_ASSIGN_OR_RETURN(
      sums.emplace_back(),
      prepare("qlora_head_loss_sum", 1, {plan.rows, plan.rows}));
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

requests::GemmProblem HeadLoss::problemOf(Product product, int64_t rows,
                                          int64_t words) const {
  if (product == Product::kLogits)
    return plan.logitsProduct(rows, words);
  if (product == Product::kWeight)
    return plan.weightGradientProduct(rows);
  return plan.hiddenGradientProduct(rows, words,
                                    product == Product::kAddedHiddenGradient);
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
  QLORA_RETURN_IF_ERROR(kernel->addRowLaunches(request));
  QLORA_RETURN_IF_ERROR(kernel->addChunks(request));
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
