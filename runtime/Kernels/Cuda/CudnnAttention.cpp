// SPDX-License-Identifier: MIT

// attention and attention_grad by cuDNN, with what the op says of padding
// around its graph: a query of segment 0 has out = 0 and lse = 0, and gives no
// gradient, because the gradient's graph is told a huge lse for it. The
// gradient's plan runs once for each piece (CudnnGradientPlan).

#include "runtime/Kernels/Cuda/CudaKernels.h"
#include "runtime/Kernels/Cuda/CudnnAttentionGraph.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

namespace qlora {

namespace operand = cudnn_operand;
using plans::CudnnGradientPlan;

namespace {
/// Bytes from an operand's part of one sequence, and of one head of keys, to
/// that of the next.
struct Steps {
  int64_t ofSequence, ofKeyHead;
};

/// How far the pieces that a plan runs over are apart.
class Pieces {
public:
  /// Of so many sequences and heads of keys each.
  Pieces(const KernelRequest &r, int64_t batch, int64_t keyHeads)
      : request(r), batch(batch), keyHeads(keyHeads) {}

  /// bf16 rows with the named stride, of heads of keys or of queries.
  Steps ofKeys(std::string_view ld) const {
    return {2 * length() * request.constant(ld), 2 * request.constant("dim")};
  }
  Steps ofQueries(std::string_view ld) const {
    return {ofKeys(ld).ofSequence, group() * ofKeys(ld).ofKeyHead};
  }
  /// f32 [batch, heads, length].
  Steps ofRows() const {
    return {4 * length() * request.constant("heads"), 4 * length() * group()};
  }
  Steps ofSegments() const { return {4 * length(), 0}; }

  /// Calls run(sequence, head of keys) with where each piece begins.
  template <typename Run> Status forEach(const Run &run) const {
    for (int64_t b = 0; b < request.constant("batch"); b += batch)
      for (int64_t h = 0; h < request.constant("kv_heads"); h += keyHeads)
        QLORA_RETURN_IF_ERROR(run(b, h));
    return Status::ok();
  }

private:
  int64_t length() const { return request.constant("length"); }
  int64_t group() const {
    return request.constant("heads") / request.constant("kv_heads");
  }
  KernelRequest request;
  int64_t batch, keyHeads;
};

/// An operand in memory.
struct Operand {
  int64_t id;
  void *address;
  Steps steps;
};

/// A plan, with the values that it reads.
class PreparedPlan {
public:
  PreparedPlan(const CudnnHandle &cudnn, const KernelRequest &r,
               CudnnAttentionPlan plan, const Pieces &pieces)
      : cudnn(cudnn), plan(std::move(plan)), pieces(pieces),
        isGradient(r.op->name == "attention_grad"),
        scale(static_cast<float>(r.constantAsDouble("scale"))),
        window(static_cast<float>(r.constant("window"))) {}

  /// `operands` is what the op has in memory; the rest is added.
  Status enqueue(std::vector<Operand> operands, void *segments,
                 void *workspace, CUstream stream);

  const Pieces &cut() const { return pieces; }
  /// Whether dQ is summed up in an operand of its own.
  bool hasSum() const {
    return isGradient && plan.dqSum == CudnnDqSum::kMemory;
  }

private:
  void addValues(std::vector<CudnnBinding> &bindings);

  const CudnnHandle &cudnn;
  CudnnAttentionPlan plan;
  Pieces pieces;
  bool isGradient;
  float scale, window, one = 1;
  /// Of scores; not infinite, so that the maximum over keys that are all
  /// masked can be subtracted.
  float masked = -1e30f;
};
} // namespace

void PreparedPlan::addValues(std::vector<CudnnBinding> &bindings) {
  bindings.push_back({operand::kScale, &scale});
  bindings.push_back({operand::kMasked, &masked});
  if (window != 0)
    bindings.push_back({operand::kWindow, &window});
  if (isGradient)
    bindings.push_back({operand::kOne, &one});
}

Status PreparedPlan::enqueue(std::vector<Operand> operands, void *segments,
                             void *workspace, CUstream stream) {
  if (segments)
    for (int64_t id : {operand::kQuerySegments, operand::kKeySegments})
      operands.push_back({id, segments, pieces.ofSegments()});
  const cudnnStatus_t onStream = cudnn.library->setStream(cudnn.handle, stream);
  if (onStream != 0)
    return Status::error(StatusCode::kInternal, "cudnnSetStream: status {}",
                         onStream);
  return pieces.forEach([&](int64_t sequence, int64_t keyHead) -> Status {
    std::vector<CudnnBinding> bindings;
    for (const auto &[id, address, steps] : operands) {
      void *moved = movedBy(address, uint64_t(sequence * steps.ofSequence +
                                              keyHead * steps.ofKeyHead));
      if (reinterpret_cast<uintptr_t>(moved) % 16 != 0)
        return Status::error(StatusCode::kInternal,
                             "an operand of cuDNN's attention is not at a "
                             "multiple of 16 bytes");
      bindings.push_back({id, moved});
    }
    addValues(bindings);
    return plan.plan.execute(cudnn.handle, bindings, workspace);
  });
}

/// The launch that treats the queries of segment 0.
static StatusOr<CudaLaunch> preparePadding(const KernelRequest &r,
                                           CudaContext &context,
                                           std::string_view symbol) {
  const int64_t rows =
      r.constant("batch") * r.constant("length") * r.constant("heads");
  return CudaLaunch::prepare(context, symbol, {blocksOf(rows, 256)},
                             r.constants);
}

PreparedCudaKernel cuda::attention::cudnn::prepare(const KernelRequest &r,
                                                   CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(const CudnnHandle *cudnn, context.cudnn());
  QLORA_ASSIGN_OR_RETURN(CudnnAttentionPlan plan,
                         planCudnnAttention({*cudnn->library, cudnn->handle},
                                            CudnnAttentionShape::of(r),
                                            plans::kCudnnForwardScratch));
  std::optional<CudaLaunch> padding;
  if (r.dtype("segments")) {
    QLORA_ASSIGN_OR_RETURN(
        padding, preparePadding(r, context, "qlora_attention_padding_out"));
  }
  const Pieces whole(r, r.constant("batch"), r.constant("kv_heads"));
  auto prepared =
      std::make_shared<PreparedPlan>(*cudnn, r, std::move(plan), whole);
  return makeCudaKernel([=](const CudaKernelArgs &args) {
    const auto &b = args.buffers;
    const Pieces &cut = prepared->cut();
    QLORA_RETURN_IF_ERROR(
        prepared->enqueue({{operand::kQ, b[0], cut.ofQueries("ldq")},
                           {operand::kK, b[1], cut.ofKeys("ldk")},
                           {operand::kV, b[2], cut.ofKeys("ldv")},
                           {operand::kOut, b[4], cut.ofQueries("ldo")},
                           {operand::kLse, b[5], cut.ofRows()}},
                          b[3], b[6], args.stream));
    return padding ? padding->enqueue(b, args) : Status::ok();
  });
}

// The gradient ----------------------------------------------------------------

PreparedCudaKernel cuda::attention_grad::cudnn::prepare(const KernelRequest &r,
                                                        CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(const CudnnHandle *cudnn, context.cudnn());
  const CudnnGradientPlan bytes = CudnnGradientPlan::of(r);
  QLORA_ASSIGN_OR_RETURN(CudnnAttentionPlan plan,
                         planCudnnAttentionGradient(
                             {*cudnn->library, cudnn->handle}, context.arch(),
                             CudnnAttentionShape::of(r), bytes));
  std::optional<CudaLaunch> padding;
  if (r.dtype("segments")) {
    QLORA_ASSIGN_OR_RETURN(
        padding, preparePadding(r, context, "qlora_attention_padding_lse"));
  }
  const Pieces pieces(r, bytes.batch, bytes.keyHeads);
  auto prepared =
      std::make_shared<PreparedPlan>(*cudnn, r, std::move(plan), pieces);
  return makeCudaKernel([=](const CudaKernelArgs &args) {
    const auto &b = args.buffers;
    const Pieces &cut = prepared->cut();
    void *const workspace = b[10];
    if (padding)
      QLORA_RETURN_IF_ERROR(padding->enqueue(b, args));
    std::vector<Operand> operands = {
        {operand::kQ, b[0], cut.ofQueries("ldq")},
        {operand::kK, b[1], cut.ofKeys("ldk")},
        {operand::kV, b[2], cut.ofKeys("ldv")},
        {operand::kOut, b[4], cut.ofQueries("ldo")},
        {operand::kLse, padding ? bytes.lse.in(workspace) : b[5], cut.ofRows()},
        {operand::kDout, b[6], cut.ofQueries("lddo")},
        {operand::kDq, b[7], cut.ofQueries("lddq")},
        {operand::kDk, b[8], cut.ofKeys("lddk")},
        {operand::kDv, b[9], cut.ofKeys("lddv")},
        {operand::kDelta, bytes.delta.in(workspace), cut.ofRows()}};
    if (!prepared->hasSum())
      return prepared->enqueue(std::move(operands), b[3],
                               bytes.scratch.in(workspace), args.stream);
    operands.push_back({operand::kDqSum, bytes.dqSum.in(workspace), {0, 0}});
    return prepared->enqueue(std::move(operands), b[3],
                             bytes.besideSum.in(workspace), args.stream);
  });
}

} // namespace qlora
