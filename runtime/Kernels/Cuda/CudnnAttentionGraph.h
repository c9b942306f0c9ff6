// SPDX-License-Identifier: MIT

// Attention as a graph that cuDNN's fused engines recognise: the operations of
// cudnn-frontend's SDPA. With segments, each query has its own window:
//
//   scores = scale Q K^T
//   masked where key > query and where key + reach(query) <= query
//
// reach(query) is the number of tokens from the start of the query's segment to
// the query, at most `window` (Device/AttentionPadding.cu). The tokens of a
// segment are adjacent. In the graph, a query of segment 0 attends to segment
// 0; CudnnAttention.cpp handles padding outside the graph.
//
// The graph cannot compare segment ids directly. On an H200, gradient plans of
// cuDNN 9.19 that read one value per key computed wrong gradients (2026-11-27);
// plans that read one value per query were right. Plans of other versions and
// GPUs were built and examined (tests/runtime/CudnnPlan).

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
/// kScores: dQ is the score gradient times K. Some of cuDNN's engines store the
/// score gradient (length^2 bf16 values per head). A plan is accepted only if
/// its workspace can hold the score gradient.
///
/// kMemory: concurrent blocks add to dQ in the operand kDqSum. The engines that
/// cuDNN's heuristics offer add in any order, and are not marked as
/// nondeterministic. So only engines with a fixed order are requested.
enum class CudnnDqSum { kScores, kMemory };

/// A plan and its graph.
struct CudnnAttentionPlan {
  CudnnGraph graph;
  CudnnPlan plan;
  CudnnDqSum dqSum = CudnnDqSum::kScores; ///< used by a gradient
};

StatusOr<CudnnAttentionPlan>
planCudnnAttention(const CudnnTarget &target, const KernelRequest &request);

/// Plans one pass of CudnnGradientPlan on a GPU of compute capability `arch`
/// (90: 9.0). Prefers an engine that stores the score gradient, unless the
/// score gradient is too large. (cudnn-frontend's limit is 256 MiB.) Otherwise
/// uses an engine that adds to dQ in a fixed order, if cuDNN has one for the
/// GPU.
StatusOr<CudnnAttentionPlan>
planCudnnAttentionGradient(const CudnnTarget &target, uint32_t arch,
                           const KernelRequest &request);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDNNATTENTIONGRAPH_H
