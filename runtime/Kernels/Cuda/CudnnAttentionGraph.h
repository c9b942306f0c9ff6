// SPDX-License-Identifier: MIT

// Attention as cuDNN's fused engines recognise it: the composition of
// cudnn-frontend's SDPA, whose window is each query's own where there are
// segments:
//
//   scores = scale Q K^T
//   masked where key > query and where key + reach(query) <= query
//
// A query reaches back to the first token of its segment, at most a window
// (attentionReach of Device/AttentionPadding.cu): the tokens of a segment
// follow each other. A query of segment 0 attends to its like here; what the op
// says of padding is done around the graph (CudnnAttention.cpp).
//
// The ids themselves cannot be compared in the kernel: cuDNN 9.19 makes plans
// for the gradient that read a number for each key, and on an H200 they gave
// wrong gradients (2026-11-27); with a number for each query they are right.
// Plans of other versions and cards were built and looked at
// (tests/runtime/CudnnPlan).

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDNNATTENTIONGRAPH_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDNNATTENTIONGRAPH_H

#include "runtime/Kernels/Cuda/CudnnGraph.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

namespace qlora {

/// Ids of the operands of both graphs.
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
  // Values, on the host.
  kScale,
  kMasked,
  kWindow,
  kOne,
};
} // namespace cudnn_operand

/// How the graph of the gradient says dQ: as the product of the scores'
/// gradient, or by way of kDqSum, to which blocks add that run at the same
/// time. Engines that heuristics offer store the scores' gradient for the
/// first (length^2 bf16 numbers a head); for the second they add as blocks
/// come, which is not deterministic, and no note of theirs says so. The second
/// is only asked of an engine that adds in one order, and a plan for the first
/// must have the scores' gradient in its workspace.
enum class CudnnDqSum { kScores, kMemory };

/// A plan and the graph that it was made of.
struct CudnnAttentionPlan {
  CudnnGraph graph;
  CudnnPlan plan;
  CudnnDqSum dqSum = CudnnDqSum::kScores; ///< of a gradient
};

StatusOr<CudnnAttentionPlan>
planCudnnAttention(const CudnnTarget &target, const KernelRequest &request);

/// For a piece of CudnnGradientPlan, on a card of compute capability `arch`
/// (90: 9.0): by an engine that stores the scores' gradient, where they are
/// not too many, and else by one whose blocks add to dQ in one order, where
/// that card and version have one. cudnn-frontend has it so, up to 256 MiB.
StatusOr<CudnnAttentionPlan>
planCudnnAttentionGradient(const CudnnTarget &target, uint32_t arch,
                           const KernelRequest &request);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDNNATTENTIONGRAPH_H
