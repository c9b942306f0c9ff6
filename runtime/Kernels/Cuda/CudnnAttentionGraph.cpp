// SPDX-License-Identifier: MIT

// Builds and plans the forward and backward graphs.

#include "runtime/Kernels/Cuda/CudnnAttentionGraph.h"

namespace qlora {

using Tensor = CudnnGraph::Tensor;
using Shape = CudnnGraph::Shape;
namespace operand = cudnn_operand;
namespace pointwise = cudnn_pointwise;
using cudnn_data::kBFloat16;
using cudnn_data::kBoolean;
using cudnn_data::kFloat;
using cudnn_data::kInt32;

namespace {
/// Builds the forward or backward graph. Both have the same masked scores.
class AttentionGraph {
public:
  AttentionGraph(const CudnnTarget &target, const KernelRequest &request)
      : graph(target), r(request), scale(graph.value(operand::kScale)),
        q(graph.operand(operand::kQ, kBFloat16, rows(heads, "ldq"))),
        kTransposed(graph.operand(operand::kK, kBFloat16,
                                  transposed(rows(keyHeads, "ldk")))) {}

  void forward();
  void backward(CudnnDqSum dqSum);

  CudnnGraph graph;

private:
  /// Returns the shape [batch, count, length, dim] of a matrix [batch, length,
  /// count * dim], whose row stride is the constant `name`.
  Shape rows(int64_t count, std::string_view name) const {
    const int64_t ld = r.constant(name);
    return {{batch, count, length, dim}, {length * ld, dim, ld, 1}};
  }
  /// Returns the shape of dense [batch, heads, length, width].
  Shape packed(int64_t width) const {
    return {{batch, heads, length, width},
            {heads * length * width, length * width, width, 1}};
  }
  Shape scores() const { return packed(length); }
  static Shape transposed(Shape shape) {
    std::swap(shape.dimensions[2], shape.dimensions[3]);
    std::swap(shape.strides[2], shape.strides[3]);
    return shape;
  }
  /// Returns the scores' shape with the strides of queries and keys swapped.
  Shape storedByKey() const {
    Shape shape = scores();
    std::swap(shape.strides[2], shape.strides[3]);
    return shape;
  }

  Tensor compute(int mode, std::initializer_list<Tensor> x, const Shape &shape,
                 int type = kFloat) {
    Tensor y = graph.intermediate(type, shape);
    graph.pointwise(mode, x, y);
    return y;
  }
  Tensor reduced(int reduction, Tensor x) {
    Tensor y = graph.intermediate(kFloat, packed(1));
    graph.reduce(reduction, x, y);
    return y;
  }
  Tensor index(int64_t axis) {
    Tensor y = graph.intermediate(kInt32, scores());
    graph.pointwise(pointwise::kIndex, {y0}, y, kFloat, axis);
    return y;
  }
  /// Returns x where the comparison of `left` and `right` is true, and kMasked
  /// elsewhere.
  Tensor where(int comparison, Tensor left, Tensor right, Tensor x);
  Tensor maskFarKeys(Tensor x);
  Tensor maskLaterKeys(Tensor x);
  Tensor scaledScores();
  void gradientOf(Tensor x, Tensor by, int64_t id, std::string_view ld);
  void gradientOfQueries(Tensor scoreGradient, CudnnDqSum dqSum);
  Tensor delta(Tensor dout);

  const KernelRequest &r;
  const int64_t batch = r.constant("batch"), length = r.constant("length");
  const int64_t heads = r.constant("heads"), dim = r.constant("dim");
  const int64_t keyHeads = r.constant("kv_heads");
  Tensor scale, q, kTransposed;
  Tensor masked = nullptr;
  Tensor y0 = nullptr; ///< gives kIndex its shape
};
} // namespace

Tensor AttentionGraph::where(int comparison, Tensor left, Tensor right,
                             Tensor x) {
  if (!masked)
    masked = graph.value(operand::kMasked);
  Tensor predicate = graph.intermediate(kBoolean, scores());
  graph.pointwise(comparison, {left, right}, predicate, kBoolean);
  return compute(pointwise::kSelect, {x, masked, predicate}, scores());
}

/// Masks keys before the window; with segments, each query has its own window.
Tensor AttentionGraph::maskFarKeys(Tensor x) {
  const bool hasSegments = r.dtype("segments").has_value();
  if (!hasSegments && r.constant("window") == 0)
    return x;
  y0 = x;
  const Shape byQuery = {{batch, 1, length, 1}, {length, length, 1, 1}};
  const int type = hasSegments ? kInt32 : kFloat;
  Tensor reach = hasSegments ? graph.operand(operand::kReach, kInt32, byQuery)
                             : graph.value(operand::kWindow);
  Tensor key = index(3), query = index(2);
  Tensor end = graph.intermediate(type, scores());
  graph.pointwise(pointwise::kAdd, {key, reach}, end, type);
  return where(pointwise::kGreater, end, query, x);
}

Tensor AttentionGraph::maskLaterKeys(Tensor x) {
  y0 = x;
  Tensor query = index(2), key = index(3);
  return where(pointwise::kGreaterOrEqual, query, key, x);
}

Tensor AttentionGraph::scaledScores() {
  Tensor product = graph.intermediate(kFloat, scores());
  graph.matmul(q, kTransposed, product);
  return compute(pointwise::kMultiply, {product, scale}, scores());
}

void AttentionGraph::forward() {
  Tensor v = graph.operand(operand::kV, kBFloat16, rows(keyHeads, "ldv"));
  Tensor out = graph.operand(operand::kOut, kBFloat16, rows(heads, "ldo"));
  Tensor lse = graph.operand(operand::kLse, kFloat, packed(1));
  Tensor x = maskLaterKeys(maskFarKeys(scaledScores()));
  Tensor maximum = reduced(cudnn_reduce::kMaximum, x);
  x = compute(pointwise::kSubtract, {x, maximum}, scores());
  x = compute(pointwise::kExponential, {x}, scores());
  Tensor sum = reduced(cudnn_reduce::kSum, x);
  Tensor logarithm = compute(pointwise::kLogarithm, {sum}, packed(1));
  graph.pointwise(pointwise::kAdd, {maximum, logarithm}, lse);
  x = compute(pointwise::kDivide, {x, sum}, scores(), kBFloat16);
  graph.matmul(x, v, out);
}

/// Computes rowsum(dout * out) into the operand kDelta.
Tensor AttentionGraph::delta(Tensor dout) {
  Tensor out = graph.operand(operand::kOut, kBFloat16, rows(heads, "ldo"));
  Tensor product = compute(pointwise::kMultiply, {dout, out}, packed(dim));
  Tensor sum = reduced(cudnn_reduce::kSum, product);
  Tensor stored = graph.operand(operand::kDelta, kFloat, packed(1));
  graph.pointwise(pointwise::kMultiply, {sum, graph.value(operand::kOne)},
                  stored);
  return stored;
}

/// Computes dK = dS^T Q or dV = P^T dO, summed over a group's query heads. `x`
/// is dS or P, `by` is Q or dO.
void AttentionGraph::gradientOf(Tensor x, Tensor by, int64_t id,
                                std::string_view ld) {
  Tensor narrow = graph.intermediate(kBFloat16, storedByKey());
  graph.reshape(x, narrow);
  Tensor result = graph.operand(id, kBFloat16, rows(keyHeads, ld));
  if (heads == keyHeads)
    return graph.matmul(narrow, by, result);
  Tensor ofHeads = graph.intermediate(kBFloat16, packed(dim));
  graph.matmul(narrow, by, ofHeads);
  graph.reduce(cudnn_reduce::kSum, ofHeads, result);
}

void AttentionGraph::gradientOfQueries(Tensor x, CudnnDqSum dqSum) {
  Tensor k = graph.intermediate(kBFloat16, rows(keyHeads, "ldk"));
  graph.reshape(kTransposed, k);
  Tensor dq = graph.operand(operand::kDq, kBFloat16, rows(heads, "lddq"));
  if (dqSum == CudnnDqSum::kScores)
    return graph.matmul(x, k, dq);
  Tensor sum = graph.operand(operand::kDqSum, kFloat, packed(dim));
  graph.matmul(x, k, sum);
  graph.pointwise(pointwise::kIdentity, {sum}, dq);
}

void AttentionGraph::backward(CudnnDqSum dqSum) {
  Tensor dout = graph.operand(operand::kDout, kBFloat16, rows(heads, "lddo"));
  Tensor vTransposed = graph.operand(operand::kV, kBFloat16,
                                     transposed(rows(keyHeads, "ldv")));
  Tensor lse = graph.operand(operand::kLse, kFloat, packed(1));
  Tensor rowSum = delta(dout);
  Tensor x = maskFarKeys(scaledScores());
  x = maskLaterKeys(compute(pointwise::kSubtract, {x, lse}, scores()));
  Tensor p = compute(pointwise::kExponential, {x}, scores());
  gradientOf(p, dout, operand::kDv, "lddv");
  x = graph.intermediate(kFloat, scores());
  graph.matmul(dout, vTransposed, x);
  x = compute(pointwise::kSubtract, {x, rowSum}, scores());
  x = compute(pointwise::kMultiply, {x, p}, scores());
  x = compute(pointwise::kMultiply, {x, scale}, scores());
  gradientOf(x, q, operand::kDk, "lddk");
  gradientOfQueries(x, dqSum);
}

// Plans -----------------------------------------------------------------------

namespace {
/// An engine that adds to dQ in a fixed order, and how its graph must compute
/// dQ. The engine's memory is proportional to the sequence length. Indices and
/// knobs of engines are from cudnn-frontend 1.32.
struct OrderedEngine {
  CudnnEngine engine;
  CudnnDqSum dqSum;
};
} // namespace

static CudnnEngine tiledEngine(int64_t index, int64_t tileM, int64_t tileN,
                               int64_t stages) {
  using namespace cudnn_engine;
  return {index,
          {{kTileM, tileM},
           {kTileN, tileN},
           {kKernelConfig, 2},
           {kStreamK, 0},
           {kTileCgaM, 0},
           {kStages, stages}}};
}

static std::optional<OrderedEngine> orderedEngine(uint32_t arch,
                                                  size_t version) {
  using namespace cudnn_engine;
  if (arch == 90 && version >= 92500)
    return OrderedEngine{tiledEngine(6, 2, 1, 4), CudnnDqSum::kMemory};
  if (arch / 10 != 10)
    return std::nullopt;
  if (version >= 92300)
    return OrderedEngine{tiledEngine(5, 3, 2, 2), CudnnDqSum::kScores};
  return OrderedEngine{{5, {{kKernelConfig, 31}, {kStages, 2}}},
                       CudnnDqSum::kScores};
}

StatusOr<CudnnAttentionPlan>
planCudnnAttention(const CudnnTarget &target, const KernelRequest &request) {
  AttentionGraph attention(target, request);
  attention.forward();
  QLORA_ASSIGN_OR_RETURN(
      CudnnPlan plan,
      attention.graph.plan(std::nullopt, plans::kCudnnForwardScratch));
  return CudnnAttentionPlan{std::move(attention.graph), std::move(plan)};
}

StatusOr<CudnnAttentionPlan>
planCudnnAttentionGradient(const CudnnTarget &target, uint32_t arch,
                           const KernelRequest &request) {
  const auto bytes = plans::CudnnGradientPlan::of(request);
  KernelRequest piece = request;
  const auto set = [&](std::string_view constant, int64_t value) {
    piece.constants[request.op->constantIndex(constant)] = value;
  };
  set("batch", bytes.batch);
  set("heads", request.constant("heads") / request.constant("kv_heads") *
                   bytes.keyHeads);
  set("kv_heads", bytes.keyHeads);
  const auto plan = [&](CudnnDqSum dqSum,
                        const std::optional<CudnnEngine> &engine)
      -> StatusOr<CudnnAttentionPlan> {
    const bool hasSum = dqSum == CudnnDqSum::kMemory;
    AttentionGraph attention(target, piece);
    attention.backward(dqSum);
    QLORA_ASSIGN_OR_RETURN(
        CudnnPlan made,
        attention.graph.plan(
            engine, (hasSum ? bytes.besideSum : bytes.scratch).bytes));
    return CudnnAttentionPlan{std::move(attention.graph), std::move(made),
                              dqSum};
  };
  Status none = Status::unavailable(
      "the score gradient of a chunk has more than {} bytes",
      plans::kCudnnMaxScores);
  if (bytes.scores.bytes() != 0) {
    auto made = plan(CudnnDqSum::kScores, std::nullopt);
    if (!made.isOk())
      none = made.status();
    else if (made->plan.workspaceBytes() >= bytes.scores.bytes())
      return made;
    else
      none = Status::unavailable("cuDNN's plan may add to dQ in any order");
    if (none.code() != StatusCode::kUnavailable)
      return none;
  }
  // All engines except orderedEngine() may add to dQ in any order.
  if (const auto ordered = orderedEngine(arch, target.api.getVersion()))
    return plan(ordered->dqSum, ordered->engine);
  return none;
}

} // namespace qlora
