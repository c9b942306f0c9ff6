// SPDX-License-Identifier: MIT

// attention and attention_grad by cuDNN, with what the op says of padding
// around its graph: a query of segment 0 has out = 0 and lse = 0, and gives no
// gradient, because the gradient's graph is told a huge lse for it. The
// gradient's plan runs once for each piece (CudnnGradientPlan).

#include "runtime/Kernels/Cuda/CudaKernel.h"
#include "runtime/Kernels/Cuda/CudnnAttentionGraph.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

namespace qlora {

namespace operand = cudnn_operand;
using plans::CudnnGradientPlan;

namespace {
/// An operand of the op that the graph has too: bf16 rows with a stride, of
/// heads of queries or of keys, or, without a stride, f32 [batch, heads,
/// length].
struct GraphOperand {
  int64_t id;
  std::string_view name, ld;
  bool isOfKeys = false;
};

/// Where an operand is, and its bytes from one sequence, and from one head of
/// keys, to the next.
struct Place {
  int64_t id;
  void *address;
  int64_t ofSequence, ofKeyHead;
};

/// A plan with the values that it reads, run over piece after piece.
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
    if (isGradient)
      bytes = CudnnGradientPlan::of(r);
  }
  Place placeOf(const GraphOperand &operand, void *address) const;
  std::vector<Place> placesOf(std::span<void *const> buffers) const;
  Status enqueuePieces(const CudaKernelArgs &args);
  Status enqueuePiece(std::span<const Place> places, int64_t sequence,
                      int64_t keyHead, void *scratch);

  const CudnnHandle &cudnn;
  KernelRequest r;
  CudnnAttentionPlan plan;
  bool isGradient = r.op->name == "attention_grad";
  int64_t length = r.constant("length");
  CudnnGradientPlan bytes; ///< the forward has one piece
  std::optional<CudaLaunch> padding; ///< treats the queries of segment 0
  float scale = static_cast<float>(r.constantAsDouble("scale"));
  float window = static_cast<float>(r.constant("window"));
  float one = 1;
  /// Of scores; not infinite, so that the maximum over keys that are all
  /// masked can be subtracted.
  float masked = -1e30f;
};
} // namespace

static constexpr GraphOperand kOperands[] = {
    {operand::kQ, "q", "ldq"},
    {operand::kK, "k", "ldk", true},
    {operand::kV, "v", "ldv", true},
    {operand::kOut, "out", "ldo"},
    {operand::kLse, "lse", ""},
    // Of the gradient only.
    {operand::kDout, "dout", "lddo"},
    {operand::kDq, "dq", "lddq"},
    {operand::kDk, "dk", "lddk", true},
    {operand::kDv, "dv", "lddv", true},
};
static constexpr size_t kForwardOperands = 5;

Place CudnnAttention::placeOf(const GraphOperand &operand,
                              void *address) const {
  const int64_t heads = r.constant("heads");
  const int64_t group = heads / r.constant("kv_heads");
  if (operand.ld.empty())
    return {operand.id, address, 4 * length * heads, 4 * length * group};
  return {operand.id, address, 2 * length * r.constant(operand.ld),
          2 * r.constant("dim") * (operand.isOfKeys ? 1 : group)};
}

std::vector<Place>
CudnnAttention::placesOf(std::span<void *const> buffers) const {
  std::vector<Place> places;
  const auto operands = std::span(kOperands).first(
      isGradient ? std::size(kOperands) : kForwardOperands);
  for (const GraphOperand &operand : operands)
    places.push_back(
        placeOf(operand, buffers[r.op->operandIndex(operand.name)]));
  if (void *segments = buffers[r.op->operandIndex("segments")])
    for (int64_t id : {operand::kQuerySegments, operand::kKeySegments})
      places.push_back({id, segments, 4 * length, 0});
  if (!isGradient)
    return places;
  void *const workspace = buffers.back();
  if (bytes.lse)
    places[kForwardOperands - 1].address = bytes.lse.in(workspace);
  places.push_back(
      placeOf({operand::kDelta, "", ""}, bytes.delta.in(workspace)));
  if (plan.dqSum == CudnnDqSum::kMemory)
    places.push_back({operand::kDqSum, bytes.dqSum.in(workspace), 0, 0});
  return places;
}

Status CudnnAttention::enqueuePiece(std::span<const Place> places,
                                    int64_t sequence, int64_t keyHead,
                                    void *scratch) {
  std::vector<CudnnBinding> bindings = {{operand::kScale, &scale},
                                        {operand::kMasked, &masked}};
  if (window != 0)
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
  return plan.plan.execute(cudnn.handle, bindings, scratch);
}

Status CudnnAttention::enqueuePieces(const CudaKernelArgs &args) {
  const std::vector<Place> places = placesOf(args.buffers);
  void *scratch = args.buffers.back();
  if (isGradient)
    scratch = (plan.dqSum == CudnnDqSum::kMemory ? bytes.besideSum
                                                 : bytes.scratch)
                  .in(scratch);
  const cudnnStatus_t onStream =
      cudnn.library->setStream(cudnn.handle, args.stream);
  if (onStream != 0)
    return Status::error(StatusCode::kInternal, "cudnnSetStream: status {}",
                         onStream);
  for (int64_t b = 0; b < r.constant("batch"); b += bytes.batch)
    for (int64_t h = 0; h < r.constant("kv_heads"); h += bytes.keyHeads)
      QLORA_RETURN_IF_ERROR(enqueuePiece(places, b, h, scratch));
  return Status::ok();
}

Status CudnnAttention::enqueue(const CudaKernelArgs &args) {
  if (!padding)
    return enqueuePieces(args);
  // The gradient's graph reads the lse that the launch makes.
  if (isGradient)
    QLORA_RETURN_IF_ERROR(padding->enqueue(args.buffers, args));
  QLORA_RETURN_IF_ERROR(enqueuePieces(args));
  return isGradient ? Status::ok() : padding->enqueue(args.buffers, args);
}

PreparedCudaKernel CudnnAttention::prepare(const KernelRequest &r,
                                           CudaContext &context) {
  QLORA_ASSIGN_OR_RETURN(const CudnnHandle *cudnn, context.cudnn());
  const CudnnTarget target = {*cudnn->library, cudnn->handle};
  const bool isGradient = r.op->name == "attention_grad";
  QLORA_ASSIGN_OR_RETURN(
      CudnnAttentionPlan plan,
      isGradient ? planCudnnAttentionGradient(target, context.arch(), r)
                 : planCudnnAttention(target, r));
  std::unique_ptr<CudnnAttention> kernel(
      new CudnnAttention(*cudnn, r, std::move(plan)));
  if (r.dtype("segments")) {
    const int64_t rows =
        r.constant("batch") * r.constant("length") * r.constant("heads");
    QLORA_ASSIGN_OR_RETURN(
        kernel->padding,
        CudaLaunch::prepare(context,
                            isGradient ? "qlora_attention_padding_lse"
                                       : "qlora_attention_padding_out",
                            {blocksOf(rows, 256)}, r.constants));
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
