// SPDX-License-Identifier: MIT

// Attention as a graph that cuDNN's fused engines recognise: the composition of
// cudnn-frontend's SDPA. With segments, each query has its own window:
//
//   scores = scale Q K^T
//   masked where key > query and where key + reach(query) <= query
//
// reach(query) goes back to the first token of the query's segment, at most
// `window` tokens (attentionReach in Device/AttentionPadding.cu); the tokens of
// a segment are adjacent. In the graph, a query of segment 0 attends to segment
// 0; CudnnAttention.cpp handles padding outside the graph.
//
// The graph cannot compare segment ids directly. cuDNN 9.19 makes gradient
// plans that read a value per key, and on an H200 their gradients were wrong
// (2026-11-27); with a value per query they are right. Plans of other versions
// and GPUs were built and examined (tests/runtime/CudnnPlan).

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDNNATTENTIONGRAPH_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDNNATTENTIONGRAPH_H

#include "runtime/Kernels/Cuda/CudnnGraph.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

namespace qlora {

/// Ids of the operands of the forward and the backward graph.
namespace cudnn_operand {
enum : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kReach, ///< i32 [batch, length], scratch
  kDout,
  kDq,
  kDk,
  kDv,
  kDelta, ///< f32 [batch, heads, length, 1], scratch
  kDqSum, ///< f32 [batch, heads, length, dim], scratch
  // Scalars in host memory.
  kScale,
  kMasked,
  kWindow,
  kOne,
};
} // namespace cudnn_operand

/// How the gradient's graph computes dQ.
///
/// kScores: as the score gradient times K. cuDNN's heuristics offer engines
/// that store the score gradient (length^2 bf16 values per head). A plan is
/// accepted only if its workspace holds the score gradient.
///
/// kMemory: through the operand kDqSum, to which concurrent blocks add.
/// Heuristics offer engines that add in any order, which is not deterministic,
/// and no note says so. So only engines with a fixed order are requested.
enum class CudnnDqSum { kScores, kMemory };

/// A plan and its graph.
struct CudnnAttentionPlan {
  CudnnGraph graph;
  CudnnPlan plan;
  CudnnDqSum dqSum = CudnnDqSum::kScores; ///< used by a gradient
};

StatusOr<CudnnAttentionPlan>
planCudnnAttention(const CudnnTarget &target, const KernelRequest &request);

/// Plans the gradient for one run of CudnnGradientPlan on a GPU of compute
/// capability `arch` (90: 9.0). Uses an engine that stores the score gradient,
/// if that is not too large; otherwise an engine that adds to dQ in a fixed
/// order, if GPU and version have one. cudnn-frontend chooses in the same way,
/// with a limit of 256 MiB.
StatusOr<CudnnAttentionPlan>
planCudnnAttentionGradient(const CudnnTarget &target, uint32_t arch,
                           const KernelRequest &request);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDNNATTENTIONGRAPH_H
