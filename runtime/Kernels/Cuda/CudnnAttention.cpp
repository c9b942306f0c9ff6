// SPDX-License-Identifier: MIT

// attention and attention_grad with cuDNN.
//
// If the op has segments, a kernel first computes each query's reach, the
// number of keys that it may see. Queries of segment 0 are padding. After the
// forward graph, a kernel sets their out and lse to 0. The gradient graph gets
// a huge lse for them, so their gradients are 0.
//
// The segment mask costs a third of the forward. If each sequence has only one
// segment, a graph without the mask runs. The padding comes last, so the causal
// mask already hides it from all other queries.

#include "runtime/Kernels/Cuda/CudaKernel.h"
#include "runtime/Kernels/Cuda/CudnnAttentionGraph.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

namespace qlora {

namespace operand = cudnn_operand;
using plans::CudnnForwardPlan;
using plans::CudnnGradientPlan;

namespace {
/// An operand of both the op and the graph. `ld` names the constant with its
/// row stride; the operand is then a bf16 matrix, with all query or key heads
/// in a row. If `ld` is empty, the operand is f32 [batch, heads, length].
struct GraphOperand {
  int64_t id;
  std::string_view name, ld;
  bool isOfKeys = false;
};

/// An operand's address, and its byte strides per sequence and per key head.
struct Place {
  int64_t id;
  void *address;
  int64_t ofSequence, ofKeyHead;
};

/// A plan and its scalars. Gradients run it once per pass of CudnnGradientPlan.
class CudnnAttention final : public CudaKernel {
public:
  static PreparedCudaKernel prepare(const KernelRequest &r,
                                    CudaContext &context);
  Status enqueue(const CudaKernelArgs &args) override;

private:
  CudnnAttention(const CudnnHandle &cudnn, const KernelRequest &r,
                 CudnnAttentionPlan plan)
      : cudnn(cudnn), r(r), plan(std::move(plan)) {
    bytes.batch = r.constant("batch");
    bytes.keyHeads = r.constant("kv_heads");
    if (isGradient) {
      bytes = CudnnGradientPlan::of(r);
    } else {
      const auto forward = CudnnForwardPlan::of(r);
      bytes.reach = forward.reach;
      bytes.scratch = forward.scratch;
    }
  }
  /// Whether the graph for `args` reads the reach of each query.
  bool needsReach(const CudaKernelArgs &args) const {
    return bytes.reach && !(ofOneSegment && args.hasOneSegment);
  }
  Status prepareSegments(CudaContext &context);
  Place placeOf(const GraphOperand &operand, void *address) const;
  std::vector<Place> placesOf(std::span<void *const> buffers,
                              const CudnnAttentionPlan &chosen,
                              bool readsReach) const;
  Status enqueuePieces(const CudaKernelArgs &args);
  Status enqueuePiece(const CudnnAttentionPlan &chosen, bool readsReach,
                      std::span<const Place> places, int64_t sequence,
                      int64_t keyHead, void *scratch);

  const CudnnHandle &cudnn;
  KernelRequest r;
  CudnnAttentionPlan plan;
  std::optional<CudnnAttentionPlan> ofOneSegment; ///< no segment mask
  bool isGradient = r.op->name == "attention_grad";
  int64_t length = r.constant("length");
  /// Sizes of a pass, and ranges of the workspace. The forward is one pass over
  /// all heads, and has only the ranges `reach` and `scratch`.
  CudnnGradientPlan bytes;
  /// Set if the op has segments. `reach` computes how many keys each query may
  /// see; `padding` handles queries of segment 0.
  std::optional<CudaLaunch> reach, padding;
  float scale = static_cast<float>(r.constantAsDouble("scale"));
  float window = static_cast<float>(r.constant("window"));
  float one = 1;
  /// Score of a masked pair. With -inf, a fully masked row would be NaN.
  float masked = -1e30f;
};
} // namespace

static constexpr GraphOperand kOperands[] = {
    {operand::kQ, "q", "ldq"},
    {operand::kK, "k", "ldk", true},
    {operand::kV, "v", "ldv", true},
    {operand::kOut, "out", "ldo"},
    {operand::kLse, "lse", ""},
    // Gradient only.
    {operand::kDout, "dout", "lddo"},
    {operand::kDq, "dq", "lddq"},
    {operand::kDk, "dk", "lddk", true},
    {operand::kDv, "dv", "lddv", true},
};
static constexpr size_t kForwardOperands = 5;
/// Equals kReachThreads of Device/AttentionPadding.cu.
static constexpr unsigned kReachThreads = 1024;

Place CudnnAttention::placeOf(const GraphOperand &operand,
                              void *address) const {
  const int64_t heads = r.constant("heads");
  const int64_t group = heads / r.constant("kv_heads");
  if (operand.ld.empty())
    return {operand.id, address, 4 * length * heads, 4 * length * group};
  return {operand.id, address, 2 * length * r.constant(operand.ld),
          2 * r.constant("dim") * (operand.isOfKeys ? 1 : group)};
}

std::vector<Place> CudnnAttention::placesOf(std::span<void *const> buffers,
                                            const CudnnAttentionPlan &chosen,
                                            bool readsReach) const {
  std::vector<Place> places;
  const auto operands = std::span(kOperands).first(
      isGradient ? std::size(kOperands) : kForwardOperands);
  for (const GraphOperand &operand : operands)
    places.push_back(
        placeOf(operand, buffers[r.op->operandIndex(operand.name)]));
  void *const workspace = buffers.back();
  if (readsReach)
    places.push_back(
        {operand::kReach, bytes.reach.in(workspace), 4 * length, 0});
  if (!isGradient)
    return places;
  if (bytes.lse)
    places[kForwardOperands - 1].address = bytes.lse.in(workspace);
  places.push_back(
      placeOf({operand::kDelta, "", ""}, bytes.delta.in(workspace)));
  if (chosen.dqSum == CudnnDqSum::kMemory)
    places.push_back({operand::kDqSum, bytes.dqSum.in(workspace), 0, 0});
  return places;
}

Status CudnnAttention::enqueuePiece(const CudnnAttentionPlan &chosen,
                                    bool readsReach,
                                    std::span<const Place> places,
                                    int64_t sequence, int64_t keyHead,
                                    void *scratch) {
  std::vector<CudnnBinding> bindings = {{operand::kScale, &scale},
                                        {operand::kMasked, &masked}};
  if (window != 0 && !readsReach)
    bindings.push_back({operand::kWindow, &window});
  if (isGradient)
    bindings.push_back({operand::kOne, &one});
  for (const auto &[id, address, ofSequence, ofKeyHead] : places) {
    void *moved = movedBy(
        address, uint64_t(sequence * ofSequence + keyHead * ofKeyHead));
    if (reinterpret_cast<uintptr_t>(moved) % 16 != 0)
      return Status::error(StatusCode::kInternal,
                           "an operand of cuDNN's attention is not at a "
                           "multiple of 16 bytes");
    bindings.push_back({id, moved});
  }
  return chosen.plan.execute(cudnn.handle, bindings, scratch);
}

Status CudnnAttention::enqueuePieces(const CudaKernelArgs &args) {
  const bool readsReach = needsReach(args);
  const CudnnAttentionPlan &chosen =
      ofOneSegment && !readsReach ? *ofOneSegment : plan;
  const std::vector<Place> places = placesOf(args.buffers, chosen, readsReach);
  const plans::Part &part =
      chosen.dqSum == CudnnDqSum::kMemory ? bytes.besideSum : bytes.scratch;
  void *const scratch = part.in(args.buffers.back());
  const cudnnStatus_t onStream =
      cudnn.library->setStream(cudnn.handle, args.stream);
  if (onStream != 0)
    return Status::error(StatusCode::kInternal, "cudnnSetStream: status {}",
                         onStream);
  for (int64_t b = 0; b < r.constant("batch"); b += bytes.batch)
    for (int64_t h = 0; h < r.constant("kv_heads"); h += bytes.keyHeads)
      QLORA_RETURN_IF_ERROR(
          enqueuePiece(chosen, readsReach, places, b, h, scratch));
  return Status::ok();
}

Status CudnnAttention::enqueue(const CudaKernelArgs &args) {
  if (!padding)
    return enqueuePieces(args);
  void *const segments[] = {args.buffers[r.op->operandIndex("segments")],
                            bytes.reach.in(args.buffers.back())};
  if (needsReach(args))
    QLORA_RETURN_IF_ERROR(reach->enqueue(segments, args));
  // This launch writes the lse that the gradient graph reads.
  if (isGradient)
    QLORA_RETURN_IF_ERROR(padding->enqueue(args.buffers, args));
  QLORA_RETURN_IF_ERROR(enqueuePieces(args));
  return isGradient ? Status::ok() : padding->enqueue(args.buffers, args);
}

Status CudnnAttention::prepareSegments(CudaContext &context) {
  const int64_t batch = r.constant("batch");
  const int64_t ofReach[] = {length, r.constant("window")};
  QLORA_ASSIGN_OR_RETURN(
      reach, CudaLaunch::prepare(
                 context, "qlora_attention_reach",
                 {batch * blocksOf(length, kReachThreads), kReachThreads},
                 ofReach));
  QLORA_ASSIGN_OR_RETURN(
      padding, CudaLaunch::prepare(
                   context,
                   isGradient ? "qlora_attention_padding_lse"
                              : "qlora_attention_padding_out",
                   {blocksOf(batch * length * r.constant("heads"), 256)},
                   r.constants));
  return Status::ok();
}

PreparedCudaKernel CudnnAttention::prepare(const KernelRequest &r,
                                           CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(const CudnnHandle *cudnn, context.cudnn());
  const CudnnTarget target = {*cudnn->library, cudnn->handle};
  const auto planOf = [&](const KernelRequest &request) {
    return r.op->name == "attention_grad"
               ? planCudnnAttentionGradient(target, context.arch(), request)
               : planCudnnAttention(target, request);
  };
  QLORA_ASSIGN_OR_RETURN(CudnnAttentionPlan plan, planOf(r));
  std::unique_ptr<CudnnAttention> kernel(
      new CudnnAttention(*cudnn, r, std::move(plan)));
  if (r.dtype("segments")) {
    QLORA_RETURN_IF_ERROR(kernel->prepareSegments(context));
    KernelRequest without = r;
    without.dtypes[r.op->operandIndex("segments")] = std::nullopt;
    auto plain = planOf(without);
    if (plain.isOk())
      kernel->ofOneSegment.emplace(std::move(*plain));
    else if (plain.status().code() != StatusCode::kUnavailable)
      return plain.status();
  }
  return std::unique_ptr<CudaKernel>(std::move(kernel));
}

PreparedCudaKernel cuda::attention::cudnn::prepare(const KernelRequest &r,
                                                   CudaContext &context) {
  return CudnnAttention::prepare(r, context);
}

PreparedCudaKernel cuda::attention_grad::cudnn::prepare(const KernelRequest &r,
                                                        CudaContext &context) {
  return CudnnAttention::prepare(r, context);
}

} // namespace qlora
