// SPDX-License-Identifier: MIT

// head_part works like head_loss, on chunks of labelled rows (HeadChunks.h).
// head_merge is three launches. Device/HeadParts.cu has the device functions.

#include <fmt/format.h>

#include "runtime/Kernels/Cuda/HeadChunks.h"

namespace qlora::cuda {

namespace {
struct HeadPart final : CudaKernel {
  HeadPart(const KernelRequest &request, CudaContext &context)
      : shards(request.constant("shards")), vocab(request.constant("vocab")),
        chunks(request, context) {}
  Status enqueue(const CudaKernelArgs &args) override;
  Status addRows(const KernelRequest &request, CudaContext &context);
  Status enqueueChunk(size_t i, void *states, const HeadBuffers &buffers,
                      const CudaKernelArgs &args) const;

  int64_t shards, vocab;
  HeadChunks chunks;
  CudaLaunch begin;
  std::vector<CudaLaunch> rows; ///< per chunk
};
} // namespace

Status HeadPart::enqueueChunk(size_t i, void *states,
                              const HeadBuffers &buffers,
                              const CudaKernelArgs &args) const {
  QLORA_RETURN_IF_ERROR(chunks.computeLogits(chunks[i], buffers, args));
  QLORA_RETURN_IF_ERROR(chunks.capLogits(chunks[i], buffers, args));
  QLORA_RETURN_IF_ERROR(chunks.observe(
      chunks[i], {.vocab = vocab, .piece = chunks.plan.vocab}, buffers, args));
  void *const finding[] = {buffers.logits, buffers.targets, buffers.labelled,
                           states};
  QLORA_RETURN_IF_ERROR(rows[i].enqueue(finding, args));
  return chunks.plan.hasGradient
             ? chunks.computeGradients(chunks[i], buffers, args)
             : Status::ok();
}

Status HeadPart::enqueue(const CudaKernelArgs &args) {
  enum Operand { kHidden, kW, kTargets, kStates, kGradient };
  HeadBuffers buffers = {};
  buffers.hidden = args.buffers[kHidden];
  buffers.w = args.buffers[kW];
  buffers.targets = args.buffers[kTargets];
  buffers.dhidden = args.buffers[kGradient];
  void *const states = args.buffers[kStates];
  chunks.place(args.buffers.back(), buffers);
  QLORA_RETURN_IF_ERROR(chunks.listLabelled(nullptr, buffers, args));
  void *const beginning[] = {buffers.targets, states};
  QLORA_RETURN_IF_ERROR(begin.enqueue(beginning, args));
  if (chunks.plan.hasGradient)
    QLORA_RETURN_IF_ERROR(chunks.clearUnlabelled(buffers, args));
  // args.labelledRows is an upper bound for each of the `shards` ranks.
  const int64_t most = std::min(args.labelledRows, chunks.plan.rows) * shards;
  for (size_t i = 0; i < chunks.countFor(most); ++i)
    QLORA_RETURN_IF_ERROR(enqueueChunk(i, states, buffers, args));
  return Status::ok();
}

Status HeadPart::addRows(const KernelRequest &request, CudaContext &context) {
  const plans::CudaHeadPlan &plan = chunks.plan;
  const int64_t all[] = {plan.rows, request.constant("smoothing")};
  QLORA_ASSIGN_OR_RETURN(
      begin, CudaLaunch::prepare(
                 context, "qlora_head_part_begin",
                 {blocksOf(plan.rows, kHeadThreads), kHeadThreads}, all));
  const std::string symbol =
      plan.hasGradient
          ? fmt::format("qlora_head_part_rows_{}", dtypeName(plan.productType))
          : "qlora_head_part_rows";
  for (size_t i = 0; i < chunks.count(); ++i) {
    const int64_t constants[] = {
        chunks[i].first, plan.vocab, request.constant("vocab"),
        request.constant("cap"), request.constant("smoothing")};
    QLORA_ASSIGN_OR_RETURN(rows.emplace_back(),
                           chunks.prepareRows(chunks[i], symbol, constants));
  }
  return Status::ok();
}

PreparedCudaKernel head_part::cuda::prepare(const KernelRequest &request,
                                            CudaContext &context) {
  auto kernel = std::make_unique<HeadPart>(request, context);
  QLORA_RETURN_IF_ERROR(
      kernel->chunks.prepare(request, kernel->chunks.plan.hidden));
  QLORA_RETURN_IF_ERROR(kernel->addRows(request, context));
  return std::unique_ptr<CudaKernel>(std::move(kernel));
}

// Merging ---------------------------------------------------------------------

namespace {
/// Three launches, and with smoothing two that sum the rows of w. Each of the
/// three has the op's constants, with the output's stride as lddh, and the
/// buffers that it needs.
struct HeadMerge final : CudaKernel {
  explicit HeadMerge(const KernelRequest &request)
      : plan(plans::CudaHeadMergePlan::of(request)) {}
  Status enqueue(const CudaKernelArgs &args) override;
  Status addWordSums(const KernelRequest &request, CudaContext &context);

  plans::CudaHeadMergePlan plan;
  CudaLaunch merge, sum;
  std::optional<CudaLaunch> finish;
  std::vector<CudaLaunch> wordSums;
};
} // namespace

Status HeadMerge::enqueue(const CudaKernelArgs &args) {
  enum Operand {
    kStates,
    kTargets,
    kLoss,
    kCount,
    kCorrect,
    kGradient,
    kW,
    kDHidden
  };
  const auto &b = args.buffers;
  void *const losses = plan.losses.in(b.back());
  void *const factors = plan.factors.in(b.back());
  void *const merging[] = {b[kStates], b[kTargets], b[kCorrect], losses,
                           factors};
  QLORA_RETURN_IF_ERROR(merge.enqueue(merging, args));
  void *const summing[] = {b[kTargets], losses, b[kLoss], b[kCount]};
  QLORA_RETURN_IF_ERROR(sum.enqueue(summing, args));
  // Without dhidden, the result overwrites `gradient`.
  void *const to = b[kDHidden] ? b[kDHidden] : b[kGradient];
  void *const wordSum = plan.wordSums.in(b.back());
  void *const adding[] = {b[kW], wordSum, plan.wordPartials.in(b.back())};
  for (const CudaLaunch &launch : wordSums)
    QLORA_RETURN_IF_ERROR(launch.enqueue(adding, args));
  void *const finishing[] = {b[kTargets], b[kGradient], b[kW],
                             factors,     to,           wordSum};
  return finish ? finish->enqueue(finishing, args) : Status::ok();
}

/// Prepares column_sum's kernels over the shard of w; its padding is zero.
Status HeadMerge::addWordSums(const KernelRequest &request,
                              CudaContext &context) {
  static constexpr int64_t kPartials = plans::kCudaColumnSumPartials;
  const int64_t columns = request.constant("hidden_size");
  const int64_t tiles = blocksOf(columns, 256);
  const int64_t constants[] = {request.constant("piece"), columns, columns,
                               kPartials, /*overwrites=*/1};
  const std::string partials =
      fmt::format("qlora_column_sum_{}", dtypeName(request.type("w")));
  QLORA_ASSIGN_OR_RETURN(wordSums.emplace_back(),
                         CudaLaunch::prepare(context, partials,
                                             {tiles * kPartials, 256},
                                             constants));
  QLORA_ASSIGN_OR_RETURN(wordSums.emplace_back(),
                         CudaLaunch::prepare(context, "qlora_column_sum_add",
                                             {tiles, 256}, constants));
  return Status::ok();
}

PreparedCudaKernel head_merge::cuda::prepare(const KernelRequest &request,
                                             CudaContext &context) {
  auto kernel = std::make_unique<HeadMerge>(request);
  std::vector<int64_t> constants = request.constants;
  if (!request.dtype("dhidden"))
    constants[request.op->constantIndex("lddh")] =
        request.constant("hidden_size");
  const auto prepare = [&](const std::string &symbol, int64_t blocks) {
    return CudaLaunch::prepare(context, symbol, {blocks, kHeadThreads},
                               constants);
  };
  const int64_t rows = request.constant("rows");
  QLORA_ASSIGN_OR_RETURN(kernel->merge, prepare("qlora_head_merge_rows",
                                                blocksOf(rows, kHeadThreads)));
  QLORA_ASSIGN_OR_RETURN(
      kernel->sum, prepare("qlora_head_merge_sum", request.constant("lines")));
  if (request.dtype("gradient")) {
    QLORA_ASSIGN_OR_RETURN(
        kernel->finish, prepare(fmt::format("qlora_head_merge_gradient_{}_{}",
                                            dtypeName(request.type("w")),
                                            dtypeName(request.type("dhidden"))),
                                rows));
    if (request.constantAsDouble("smoothing") != 0)
      QLORA_RETURN_IF_ERROR(kernel->addWordSums(request, context));
  }
  return std::unique_ptr<CudaKernel>(std::move(kernel));
}

} // namespace qlora::cuda
