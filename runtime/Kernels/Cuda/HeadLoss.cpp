// SPDX-License-Identifier: MIT

// What head_loss and head_loss_grad enqueue.

#include "runtime/Kernels/Cuda/HeadLoss.h"

namespace qlora::cuda {

/// A matrix from its row `row` on.
static void *rowsAt(void *matrix, qlora_dtype dtype, int64_t row,
                    int64_t stride) {
  return movedBy(matrix, uint64_t(row * stride * (dtypeBits(dtype) / 8)));
}

HeadLoss::Operands HeadLoss::operandsOf(const CudaKernelArgs &args) const {
  Operands operands = {args.buffers[0], args.buffers[1], args.buffers[2],
                       args.buffers[3], args.buffers[4], args.buffers[5]};
  if (plan.hasGradient) {
    operands.dhidden = args.buffers[6];
    operands.dw = args.buffers[7];
  }
  return operands;
}

HeadLoss::Parts HeadLoss::partsOf(const CudaKernelArgs &args) const {
  void *next = args.buffers.back();
  const auto take = [&](requests::Size size) {
    void *part = next;
    next = movedBy(next, size.bytes());
    return part;
  };
  Parts parts;
  parts.rowLosses = take(plan.rowLosses);
  parts.labelled = take(plan.labelled);
  parts.logits = take(plan.logits);
  parts.gathered = take(plan.gathered);
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
  void *const gathering[] = {operands.hidden, parts.labelled, parts.gathered};
  QLORA_RETURN_IF_ERROR(chunk.gather.enqueue(gathering, args));
  for (const Panel &panel : panels) {
    QLORA_ASSIGN_OR_RETURN(const void *words,
                           panelOf(panel, operands, parts, args));
    QLORA_RETURN_IF_ERROR(
        gemm(Product::kLogits, chunk.rows, panel.words)
            .enqueue(parts.gathered, words,
                     movedBy(parts.logits, uint64_t(panel.first) * 4),
                     parts.scratch, args.stream));
  }
  if (args.observer && args.observer->onLogits)
    QLORA_RETURN_IF_ERROR(observe(chunk, parts, args));
  void *const buffers[] = {parts.logits, operands.targets, parts.labelled,
                           parts.rowLosses, operands.correct};
  QLORA_RETURN_IF_ERROR(chunk.softmax.enqueue(buffers, args));
  return plan.hasGradient ? enqueueGradients(chunk, operands, parts, args)
                          : Status::ok();
}

Status HeadLoss::enqueueGradients(const Chunk &chunk, const Operands &operands,
                                  const Parts &parts,
                                  const CudaKernelArgs &args) const {
  for (const Panel &panel : panels) {
    QLORA_ASSIGN_OR_RETURN(const void *words,
                           panelOf(panel, operands, parts, args));
    const Product product = panel.first == 0 ? Product::kHiddenGradient
                                             : Product::kAddedHiddenGradient;
    QLORA_RETURN_IF_ERROR(
        gemm(product, chunk.rows, panel.words)
            .enqueue(rowsAt(parts.logits, plan.productType, panel.first, 1),
                     words, parts.gradient, parts.scratch, args.stream));
  }
  void *const scattering[] = {parts.gradient, parts.labelled,
                              operands.dhidden};
  QLORA_RETURN_IF_ERROR(chunk.scatter.enqueue(scattering, args));
  if (!hasWeightGradient)
    return Status::ok();
  return gemm(Product::kWeight, chunk.rows, plan.vocab)
      .enqueue(parts.logits, parts.gathered, operands.dw, parts.scratch,
               args.stream);
}

/// Shows the rows of a chunk to the observer.
Status HeadLoss::observe(const Chunk &chunk, const Parts &parts,
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
  QLORA_RETURN_IF_ERROR(read(logits.data(), parts.logits, logits.size() * 4));
  QLORA_RETURN_IF_ERROR(
      read(rows.data(), movedBy(parts.labelled, uint64_t(chunk.first) * 4),
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
  const Parts parts = partsOf(args);
  void *const finding[] = {operands.targets, parts.labelled, operands.correct};
  QLORA_RETURN_IF_ERROR(findLabelled.enqueue(finding, args));
  if (plan.hasGradient) {
    void *const clearing[] = {operands.targets, operands.dhidden};
    QLORA_RETURN_IF_ERROR(clearUnlabelled.enqueue(clearing, args));
  }
  const int64_t rows = std::min(args.labelledRows, plan.rows);
  const auto count = static_cast<size_t>(blocksOf(rows, plan.chunkRows));
  for (size_t i = 0; i < count; ++i)
    QLORA_RETURN_IF_ERROR(enqueueChunk(chunks[i], operands, parts, args));
  void *const buffers[] = {parts.rowLosses, parts.labelled, operands.loss,
                           operands.count};
  return sums[count].enqueue(buffers, args);
}

} // namespace qlora::cuda
