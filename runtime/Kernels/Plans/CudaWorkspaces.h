// SPDX-License-Identifier: MIT

// How the CUDA kernels lay out their workspaces: the counterpart of
// Workspaces.h, whose GemmProblem it shares. Parts are at multiples of
// kCudaAlignment bytes.

#ifndef QLORA_RUNTIME_KERNELS_PLANS_CUDAWORKSPACES_H
#define QLORA_RUNTIME_KERNELS_PLANS_CUDAWORKSPACES_H

#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora::plans {

/// Bytes that workspaces on CUDA and their parts begin at multiples of. One of
/// cublasLtMatmul "must be 256B aligned" by its documentation, which refuses
/// any other with CUBLAS_STATUS_INVALID_VALUE; cuMemAlloc gives no less.
inline constexpr int64_t kCudaAlignment = 256;

/// At most this much is given to cuBLASLt, in bytes.
inline constexpr int64_t kCublasScratch = int64_t(32) << 20;

/// Partial sums of column_sum on CUDA, whatever the card.
inline constexpr int64_t kCudaColumnSumPartials = 64;

/// Bytes of a converted panel of the head's weight, about.
inline constexpr int64_t kHeadPanelBytes = int64_t(64) << 20;

/// Bytes of the logits of a chunk of the head's rows, about, where there is
/// room for them; but so many rows at least, and where there is room for all
/// that is faster.
inline constexpr int64_t kHeadLogitsBytes = int64_t(128) << 20;
inline constexpr int64_t kHeadChunk = 256, kHeadLargeChunk = 1024;

/// A product as cuBLASLt does it. Its operands have one type: bf16 where both
/// are bf16, or one is and the other may be rounded; f32 otherwise. Operands
/// of another type are converted into dense copies; a result that cuBLASLt
/// does not write is made in an f32 copy of c first.
struct CudaGemmPlan {
  GemmProblem product; ///< with the types and strides of the copies
  Part a, b, c;
  Part scratch; ///< cuBLASLt's
  Size total = 0;
  /// Behind what else is in the workspace, `begin` bytes.
  static CudaGemmPlan of(const GemmProblem &problem, Size begin = 0);
};

/// panel_matmul.decoded: the whole weight in a's type, if it is stored in
/// another, then what the product needs.
struct CudaPanelPlan {
  Part decoded;
  GemmProblem problem; ///< with the decoded weight
  static CudaPanelPlan of(const KernelRequest &request);
  CudaGemmPlan product() const {
    return CudaGemmPlan::of(problem, decoded.bytes);
  }
};

/// int8_matmul: all of a as whole numbers, with a scale for each row, and which
/// columns are left out of that.
struct CudaInt8Plan {
  Part codes;  ///< i8 [m, columns]
  Part scales; ///< f32 [m]
  Part marks;  ///< i32 [columns]
  Size total = 0;
  static CudaInt8Plan of(const KernelRequest &request);
};

/// attention_grad: rowsum(dout * out), f32 [batch, heads, length].
Size cudaAttentionDelta(const KernelRequest &request);

/// What a plan of cuDNN may need of scratch, forward, in bytes; it is a part
/// that holds the state of its scheduler, where there is any.
inline constexpr int64_t kCudnnForwardScratch = 4096;

/// attention.cudnn.
struct CudnnForwardPlan {
  Part scratch; ///< cuDNN's
  Part reach;   ///< i32 [batch, length], where there are segments
  Size total = 0;
  static CudnnForwardPlan of(const KernelRequest &request);
};

/// The scores' gradient of one piece of attention_grad.cudnn is not stored
/// where it is larger than this, in bytes.
inline constexpr int64_t kCudnnMaxScores = int64_t(4) << 30;

/// attention_grad.cudnn runs one graph over piece after piece: some sequences,
/// or some heads of keys of one sequence, each with its heads of queries; at
/// most `slots` heads of keys at a time. So what the pieces share is small
/// where the pieces are: scratch of ours for all of them, then cuDNN's for
/// one. An engine needs either sums of dK and dV for every head of queries and
/// the scores' gradient (2 length^2 bytes a head), or those sums and that of
/// dQ.
struct CudnnGradientPlan {
  int64_t batch = 1, keyHeads = 1; ///< of a piece; divisors of the op's
  Part lse;        ///< f32 [batch, heads, length], where there are segments
  Part delta;      ///< f32 [batch, heads, length]
  Part reach;      ///< i32 [batch, length], where there are segments
  Size scores = 0; ///< the scores' gradient of a piece; 0: not to be stored
  Part scratch;    ///< cuDNN's
  /// Of it, where a graph names the sum of dQ: that, f32, like q; and the rest.
  Part dqSum, besideSum;
  Size total = 0;
  static CudnnGradientPlan of(const KernelRequest &request);
};

/// head_loss, head_loss_grad and head_part over chunks of labelled rows, which
/// are gathered. The products are bf16 where hidden and w are, and f32 otherwise:
/// then panels of rows of w are widened. The gradient of the logits replaces
/// them in place; a bf16 row takes the first half of its f32 row.
struct CudaHeadPlan {
  int64_t rows, chunkRows, panelRows, hidden;
  int64_t vocab; ///< rows of w
  qlora_dtype hiddenType, weightType, productType;
  bool hasGradient, hasWeightGradient;
  qlora_dtype dhiddenType;  ///< of the operand
  qlora_dtype gradientType; ///< of the gathered gradient; panels add up in f32
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
  /// Elements from one row of the logits' gradient to the next.
  int64_t gradientStride() const;
  GemmProblem logitsProduct(int64_t rows, int64_t words) const;
  /// Panels but the first add to the gradient.
  GemmProblem hiddenGradientProduct(int64_t rows, int64_t words,
                                    bool adds) const;
  GemmProblem weightGradientProduct(int64_t rows) const;

private:
  Size productScratch() const;
};

/// head_merge on CUDA.
struct CudaHeadMergePlan {
  Part losses;  ///< f64, of the shard's rows
  Part factors; ///< f32 [rows, 2]: of the gradient, and of the target's word
  Size total = 0;
  static CudaHeadMergePlan of(const KernelRequest &request);
};

} // namespace qlora::plans

#endif // QLORA_RUNTIME_KERNELS_PLANS_CUDAWORKSPACES_H
