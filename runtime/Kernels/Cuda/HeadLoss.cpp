// SPDX-License-Identifier: MIT

// head_loss and head_loss_grad. A chunk of labelled rows (HeadChunks.h) needs a
// GEMM and a launch of Device/HeadLoss.cu; a gradient needs two more GEMMs.

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/HeadChunks.h"

namespace qlora::cuda {

namespace {
class HeadLoss final : public CudaKernel {
public:
  static PreparedCudaKernel prepare(const KernelRequest &request,
                                    CudaContext &context);
  Status enqueue(const CudaKernelArgs &args) override;

private:
  using Plan = plans::CudaHeadPlan;

  /// More operands; null if the op or the call lacks them.
  struct Operands : HeadBuffers {
    void *loss, *count, *correct, *columns, *words, *dcolumns, *rowLosses;
  };
  /// A chunk's launches in addition to those of HeadChunks.
  struct RowLaunches {
    CudaLaunch softmax;
    std::optional<CudaLaunch> replace, take;
  };

  HeadLoss(const KernelRequest &request, CudaContext &context)
      : context(context), chunks(request, context) {}
  Status addLosses(const KernelRequest &request);
  Status addReplaced(const KernelRequest &request);

  Operands operandsOf(const CudaKernelArgs &args) const;
  Status enqueueChunk(size_t i, const Operands &operands,
                      const CudaKernelArgs &args) const;

  CudaContext &context;
  HeadChunks chunks;
  std::optional<CudaLaunch> clearColumns;
  std::vector<RowLaunches> launches; ///< per chunk
  std::vector<CudaLaunch> sums;      ///< index: number of computed chunks
};
} // namespace

HeadLoss::Operands HeadLoss::operandsOf(const CudaKernelArgs &args) const {
  const auto &b = args.buffers;
  const Plan &plan = chunks.plan;
  Operands operands = {};
  operands.hidden = b[0];
  operands.w = b[1];
  operands.targets = b[2];
  operands.loss = b[3];
  operands.count = b[4];
  operands.correct = b[5];
  if (plan.hasGradient) {
    operands.dhidden = b[6];
    operands.dw = b[7];
    operands.dcolumns = b[10];
  }
  operands.columns = b[plan.hasGradient ? 8 : 6];
  operands.words = b[plan.hasGradient ? 9 : 7];
  operands.rowLosses = plan.rowLosses.in(b.back());
  chunks.place(b.back(), operands);
  return operands;
}

Status HeadLoss::enqueueChunk(size_t i, const Operands &operands,
                              const CudaKernelArgs &args) const {
  const HeadChunk &chunk = chunks[i];
  const RowLaunches &rows = launches[i];
  QLORA_RETURN_IF_ERROR(chunks.computeLogits(chunk, operands, args));
  void *const replacing[] = {operands.logits, operands.labelled,
                             operands.columns, operands.words};
  if (rows.replace)
    QLORA_RETURN_IF_ERROR(rows.replace->enqueue(replacing, args));
  QLORA_RETURN_IF_ERROR(chunks.capLogits(chunk, operands, args));
  QLORA_RETURN_IF_ERROR(chunks.observe(
      chunk, {.vocab = chunks.plan.vocab}, operands, args));
  void *const buffers[] = {operands.logits, operands.targets, operands.labelled,
                           operands.rowLosses, operands.correct};
  QLORA_RETURN_IF_ERROR(rows.softmax.enqueue(buffers, args));
  void *const taking[] = {operands.logits, operands.labelled,
                          operands.dcolumns, operands.words};
  if (rows.take)
    QLORA_RETURN_IF_ERROR(rows.take->enqueue(taking, args));
  return chunks.plan.hasGradient
             ? chunks.computeGradients(chunk, operands, args)
             : Status::ok();
}

Status HeadLoss::enqueue(const CudaKernelArgs &args) {
  const Operands operands = operandsOf(args);
  QLORA_RETURN_IF_ERROR(chunks.listLabelled(operands.correct, operands, args));
  if (chunks.plan.hasGradient)
    QLORA_RETURN_IF_ERROR(chunks.clearUnlabelled(operands, args));
  void *const columns[] = {operands.targets, operands.dcolumns};
  if (clearColumns)
    QLORA_RETURN_IF_ERROR(clearColumns->enqueue(columns, args));
  const size_t count = chunks.countFor(args.labelledRows);
  for (size_t i = 0; i < count; ++i)
    QLORA_RETURN_IF_ERROR(enqueueChunk(i, operands, args));
  void *const buffers[] = {operands.rowLosses, operands.labelled, operands.loss,
                           operands.count};
  return sums[count].enqueue(buffers, args);
}

// Prepared at load -----------------------------------------------------------

/// Prepares each chunk's softmax, and a loss sum for each possible chunk count.
Status HeadLoss::addLosses(const KernelRequest &request) {
  const Plan &plan = chunks.plan;
  const std::string softmax =
      plan.hasGradient
          ? fmt::format("qlora_head_loss_rows_{}", dtypeName(plan.productType))
          : "qlora_head_loss_rows";
  const int64_t lines = request.constant("lines");
  const auto addSum = [&](int64_t computed) -> Status {
    const int64_t constants[] = {plan.rows, computed, plan.rows / lines};
    QLORA_ASSIGN_OR_RETURN(sums.emplace_back(),
                           CudaLaunch::prepare(context, "qlora_head_loss_sum",
                                               {lines, kHeadThreads},
                                               constants));
    return Status::ok();
  };
  for (size_t i = 0; i < chunks.count(); ++i) {
    const int64_t constants[] = {
        chunks[i].first, plan.vocab, request.constant("cap"),
        request.constant("smoothing"), request.constant("own_probability")};
    QLORA_ASSIGN_OR_RETURN(launches.emplace_back().softmax,
                           chunks.prepareRows(chunks[i], softmax, constants));
    QLORA_RETURN_IF_ERROR(addSum(chunks[i].first));
  }
  return addSum(plan.rows);
}

/// Prepares the launches for replaced logits and their gradient.
Status HeadLoss::addReplaced(const KernelRequest &request) {
  const Plan &plan = chunks.plan;
  const int64_t replaced = request.constant("replaced");
  if (replaced == 0)
    return Status::ok();
  const std::string type(dtypeName(request.type("columns")));
  const std::string take =
      fmt::format("qlora_head_take_{}_{}", dtypeName(plan.productType), type);
  for (size_t i = 0; i < chunks.count(); ++i) {
    const int64_t constants[] = {chunks[i].first, plan.vocab, replaced};
    QLORA_ASSIGN_OR_RETURN(
        launches[i].replace,
        chunks.prepareRows(chunks[i], "qlora_head_replace_" + type, constants));
    if (plan.hasGradient) {
      QLORA_ASSIGN_OR_RETURN(launches[i].take,
                             chunks.prepareRows(chunks[i], take, constants));
    }
  }
  if (!plan.hasGradient)
    return Status::ok();
  const int64_t shape[] = {replaced, replaced};
  QLORA_ASSIGN_OR_RETURN(
      clearColumns, CudaLaunch::prepare(context, "qlora_head_clear_" + type,
                                        {plan.rows, kHeadThreads}, shape));
  return Status::ok();
}

PreparedCudaKernel HeadLoss::prepare(const KernelRequest &request,
                                     CudaContext &context) {
  std::unique_ptr<HeadLoss> kernel(new HeadLoss(request, context));
  const int64_t stride =
      kernel->chunks.plan.hasGradient ? request.constant("lddh") : 0;
  QLORA_RETURN_IF_ERROR(kernel->chunks.prepare(request, stride));
  QLORA_RETURN_IF_ERROR(kernel->addLosses(request));
  QLORA_RETURN_IF_ERROR(kernel->addReplaced(request));
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
