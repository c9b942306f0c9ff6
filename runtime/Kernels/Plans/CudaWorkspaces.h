// SPDX-License-Identifier: MIT

// The layouts of the workspaces of CUDA kernels: the counterpart of
// Workspaces.h, whose GemmProblem it shares. Buffers are at multiples of
// kCudaAlignment bytes.

#ifndef QLORA_RUNTIME_KERNELS_PLANS_CUDAWORKSPACES_H
#define QLORA_RUNTIME_KERNELS_PLANS_CUDAWORKSPACES_H

#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora::plans {

/// Alignment of workspaces on CUDA and of the buffers in them, in bytes.
/// cublasLtMatmul documents that its workspace "must be 256B aligned" and
/// returns CUBLAS_STATUS_INVALID_VALUE otherwise; cuMemAlloc aligns to at least
/// that.
inline constexpr int64_t kCudaAlignment = 256;

/// Number of bf16 elements in a load of 16 bytes.
inline constexpr int64_t kNumbersOfLoad = 8;

/// Maximum workspace for cuBLASLt, in bytes.
inline constexpr int64_t kCublasScratch = int64_t(32) << 20;

/// Partial sums of column_sum on CUDA, whatever the GPU.
inline constexpr int64_t kCudaColumnSumPartials = 64;

/// Approximate bytes of a converted panel of the LM head's weight.
inline constexpr int64_t kHeadPanelBytes = int64_t(64) << 20;

/// Approximate bytes of a chunk's logits, if memory allows. A chunk has at
/// least kHeadChunk rows; with a large workspace, at least kHeadLargeChunk
/// rows, which is faster.
inline constexpr int64_t kHeadLogitsBytes = int64_t(128) << 20;
inline constexpr int64_t kHeadChunk = 256, kHeadLargeChunk = 1024;

/// A matmul by cuBLASLt. cuBLASLt's operands have one type: bf16 if both
/// operands are bf16, or one is bf16 and the other may be rounded; otherwise
/// f32. Operands of other types are converted into dense copies. A result that
/// cuBLASLt cannot write is computed in an f32 copy of c first.
struct CudaGemmPlan {
  GemmProblem product; ///< has the types and strides of the copies
  Part a, b, c;
  Part scratch; ///< cuBLASLt's workspace
  Size total = 0;
  /// Returns the plan; its buffers begin after `begin` bytes of the workspace.
  static CudaGemmPlan of(const GemmProblem &problem, Size begin = 0);
};

/// Workspace of panel_matmul.decoded: the complete weight in a's type, if it is
/// stored in another type, then the buffers of the matmul.
struct CudaPanelPlan {
  Part decoded;
  GemmProblem problem; ///< the matmul with the decoded weight
  static CudaPanelPlan of(const KernelRequest &request);
  CudaGemmPlan product() const {
    return CudaGemmPlan::of(problem, decoded.bytes);
  }
};

/// panel_matmul.tensor: maximum rows of a, elements of W that a lane decodes
/// together, and rows of W of a block (Device/FewRows.cu).
inline constexpr int64_t kFewRowsMost = 16, kFewRowsRun = 32,
                         kFewRowsOutputs = 16;

/// Workspace of int8_matmul: all of a as integers with a scale for each row,
/// and marks for the outlier columns.
struct CudaInt8Plan {
  Part codes;  ///< i8 [m, columns]
  Part scales; ///< f32 [m]
  Part marks;  ///< i32 [columns]
  Size total = 0;
  static CudaInt8Plan of(const KernelRequest &request);
};

/// attention_grad: bytes of rowsum(dout * out), f32 [batch, heads, length].
Size cudaAttentionDelta(const KernelRequest &request);

/// A block of cached_attention.cuda computes up to kCachedRows query heads of
/// one key head, for up to kCachedDims dimensions (Device/Caches.cuh). The keys
/// are split into ranges of kCachedRangeKeys positions.
inline constexpr int64_t kCachedRows = 4, kCachedDims = 256,
                         kCachedRangeKeys = 128;
/// With fewer blocks than this, each range has a separate block: otherwise the
/// blocks of a short batch with a long cache would not fill a GPU.
inline constexpr int64_t kCachedFewBlocks = 256;

/// Blocks and workspace of cached_attention.cuda.
struct CudaCachedPlan {
  int64_t blocks = 0; ///< clamped to 2^62
  /// Maximum number of ranges of a row, if ranges have separate blocks; else 0.
  int64_t ranges = 0;
  Part values; ///< f32 [batch * length * heads, ranges, dim]
  Part states; ///< f32 [batch * length * heads, ranges, 2]
  Size total = 0;
  static CudaCachedPlan of(const KernelRequest &request);
};

/// Maximum scratch of a forward plan of cuDNN, in bytes. The scratch holds the
/// state of the kernel's scheduler, if it has one.
inline constexpr int64_t kCudnnForwardScratch = 4096;

/// Workspace of attention.cudnn.
struct CudnnForwardPlan {
  Part scratch; ///< cuDNN's workspace
  Part reach;   ///< i32 [batch, length], if there are segments
  Size total = 0;
  static CudnnForwardPlan of(const KernelRequest &request);
};

/// Maximum bytes of the scores' gradient that one pass of attention_grad.cudnn
/// stores. Larger gradients are not stored.
inline constexpr int64_t kCudnnMaxScores = int64_t(4) << 30;

/// attention_grad.cudnn runs one graph in several passes. A pass covers several
/// sequences, or some key heads of one sequence with their query heads; at most
/// `slots` key heads in all. The workspace holds this project's buffers for all
/// passes, then cuDNN's scratch for one pass. An engine needs sums of dK and dV
/// for every query head, and either the scores' gradient (2 length^2 bytes per
/// head) or a sum of dQ.
struct CudnnGradientPlan {
  int64_t batch = 1, keyHeads = 1; ///< sizes of a pass; divisors of the op's
  Part lse;        ///< f32 [batch, heads, length], with segments only
  Part delta;      ///< f32 [batch, heads, length]
  Part reach;      ///< i32 [batch, length], with segments only
  Size scores = 0; ///< bytes of a pass's scores' gradient; 0: not stored
  Part scratch;    ///< cuDNN's workspace
  /// `scratch` in two ranges, for graphs with an operand for the sum of dQ: a
  /// pass's sum, f32 [batch, heads, length, dim], and cuDNN's workspace.
  Part dqSum, besideSum;
  Size total = 0;
  static CudnnGradientPlan of(const KernelRequest &request);
};

/// head_loss, head_loss_grad and head_part over chunks of gathered labelled
/// rows. The matmuls are bf16 if hidden and w are bf16; otherwise they are f32,
/// and w is widened in panels of rows. The gradient of the logits overwrites
/// the logits: a bf16 row of gradients takes the first half of the f32 row of
/// logits.
struct CudaHeadPlan {
  int64_t rows, chunkRows, panelRows, hidden;
  int64_t vocab; ///< rows of w
  qlora_dtype hiddenType, weightType, productType;
  bool hasGradient, hasWeightGradient;
  qlora_dtype dhiddenType;  ///< type of the operand dhidden
  qlora_dtype gradientType; ///< type of `gradient`; f32 for panels
  Part rowLosses;           ///< f64 [rows]; head_part has none
  Part labelled;            ///< i32 [rows]: the rows with a label, then -1
  Part logits;              ///< f32 [chunkRows, vocab]
  Part gathered;            ///< productType [chunkRows, hidden]
  Part panel;               ///< f32 [panelRows, hidden]
  Part gradient;            ///< gradientType [chunkRows, hidden]
  Part scratch;
  Size total = 0;
  static CudaHeadPlan of(const KernelRequest &request);

  bool hasPanels() const { return weightType != productType; }
  /// Elements between the starts of rows of the logits' gradient.
  int64_t gradientStride() const;
  GemmProblem logitsProduct(int64_t rows, int64_t words) const;
  /// `adds`: accumulates, as all panels except the first do.
  GemmProblem hiddenGradientProduct(int64_t rows, int64_t words,
                                    bool adds) const;
  GemmProblem weightGradientProduct(int64_t rows) const;

private:
  Size productScratch() const;
};

/// Workspace of head_merge on CUDA.
struct CudaHeadMergePlan {
  Part losses;  ///< f64 [own]: losses of the rank's own rows
  Part factors; ///< f32 [rows, 2]: for gradient, for the target's w; [rows, 3]
                ///< with smoothing: for the sum of w's rows
  Part wordSums, wordPartials; ///< with smoothing: this sum, f32 [hidden], and
                               ///< its parts
  Size total = 0;
  static CudaHeadMergePlan of(const KernelRequest &request);
};

} // namespace qlora::plans

#endif // QLORA_RUNTIME_KERNELS_PLANS_CUDAWORKSPACES_H
