// SPDX-License-Identifier: MIT

// Requests of the CUDA rows. What an op accepts does not depend on the
// target, so reject is that of its reference.

#include "runtime/Kernels/Requests/CudaWorkspaces.h"

#include <algorithm>

namespace qlora::requests {

static constexpr qlora_dtype kF32 = QLORA_DTYPE_F32;
static constexpr qlora_dtype kBF16 = QLORA_DTYPE_BF16;

static Size part(Size bytes) { return bytes.aligned(kCudaAlignment); }

/// A part that holds a matrix without gaps.
static Size matrixPart(qlora_dtype dtype, int64_t rows, int64_t columns) {
  return part(matrixBytes(dtype, rows, columns, columns));
}

// Matrix products -------------------------------------------------------------

/// Room for a depth that is split into 16 partial results.
static Size cublasScratch(const GemmProblem &p) {
  const Size wanted = part(Size(p.m) * Size(p.n) * Size(64));
  return static_cast<int64_t>(
      std::min<uint64_t>(wanted.bytes(), kCublasScratch));
}

CudaGemmPlan CudaGemmPlan::of(const GemmProblem &p) {
  const qlora_dtype type =
      (p.a == kBF16 && p.b == kBF16) || p.isBF16() ? kBF16 : kF32;
  CudaGemmPlan plan;
  plan.product = p;
  plan.product.a = plan.product.b = type;
  if (p.a != type) {
    plan.a = matrixPart(type, p.m, p.k);
    plan.product.lda = p.transposeA ? p.m : p.k;
  }
  if (p.b != type) {
    plan.b = matrixPart(type, p.k, p.n);
    plan.product.ldb = p.transposeB ? p.k : p.n;
  }
  if (p.c != kF32 && p.c != type) {
    plan.c = matrixPart(kF32, p.m, p.n);
    plan.product.c = kF32;
    plan.product.ldc = p.n;
  }
  plan.scratch = cublasScratch(p);
  return plan;
}

Reason matmul::cublaslt::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t matmul::cublaslt::workspaceBytes(const KernelRequest &r) {
  return CudaGemmPlan::of(matmulProblem(r)).total().bytes();
}

CudaPanelPlan CudaPanelPlan::of(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const bool isForward = r.constant("transpose_w") != 0;
  const qlora_dtype type = typeOf(r, "a");
  CudaPanelPlan plan;
  if (typeOf(r, "w") != type)
    plan.decoded = matrixPart(type, rows, columns);
  plan.problem = {r.constant("m"),
                  isForward ? rows : columns,
                  isForward ? columns : rows,
                  r.constant("lda"),
                  columns,
                  r.constant("ldc"),
                  false,
                  isForward,
                  type,
                  type,
                  typeOf(r, "c"),
                  static_cast<float>(r.constantAsDouble("alpha")),
                  static_cast<float>(r.constantAsDouble("beta"))};
  return plan;
}

Reason panel_matmul::decoded::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t panel_matmul::decoded::workspaceBytes(const KernelRequest &r) {
  const CudaPanelPlan plan = CudaPanelPlan::of(r);
  return (plan.decoded + CudaGemmPlan::of(plan.problem).total()).bytes();
}

Reason decode::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t decode::cuda::workspaceBytes(const KernelRequest &) { return 0; }

// Attention
// ---------------------------------------------------------------------

Reason attention::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t attention::cuda::workspaceBytes(const KernelRequest &) { return 0; }

Size cudaAttentionDelta(const KernelRequest &r) {
  return part(Size(r.constant("batch")) * Size(r.constant("heads")) *
              Size(r.constant("length")) * Size(4));
}

Reason attention_grad::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t attention_grad::cuda::workspaceBytes(const KernelRequest &r) {
  return cudaAttentionDelta(r).bytes();
}

// Head and loss
// -----------------------------------------------------------------

int64_t CudaHeadPlan::gradientStride() const {
  return productType == kBF16 ? 2 * vocab : vocab;
}

GemmProblem CudaHeadPlan::logitsProduct(int64_t chunk, int64_t words) const {
  return {chunk, words,       hidden,      hidden, hidden, vocab, false,
          true,  productType, productType, kF32,   1,      0};
}

GemmProblem CudaHeadPlan::hiddenGradientProduct(int64_t chunk, int64_t words,
                                                bool adds) const {
  return {chunk,
          hidden,
          words,
          gradientStride(),
          hidden,
          hidden,
          false,
          false,
          productType,
          productType,
          gradientType,
          1,
          adds ? 1.0f : 0.0f};
}

GemmProblem CudaHeadPlan::weightGradientProduct(int64_t chunk) const {
  return {vocab,  hidden, chunk, gradientStride(), hidden,
          hidden, true,   false, productType,      productType,
          kF32,   1,      1};
}

CudaHeadPlan CudaHeadPlan::of(const KernelRequest &r) {
  CudaHeadPlan plan;
  plan.rows = r.constant("rows");
  plan.hidden = r.constant("hidden_size");
  plan.vocab = r.constant("vocab");
  plan.chunkRows = std::min(r.constant("chunk_rows"), plan.rows);
  plan.hiddenType = typeOf(r, "hidden");
  plan.weightType = typeOf(r, "w");
  plan.productType =
      plan.hiddenType == plan.weightType ? plan.hiddenType : kF32;
  plan.hasGradient = r.op->name == "head_loss_grad";
  plan.dhiddenType = plan.hasGradient ? typeOf(r, "dhidden") : kF32;
  plan.gradientType = plan.productType == kBF16 ? plan.dhiddenType : kF32;
  plan.panelRows = plan.vocab;
  plan.rowLosses = part(Size(plan.rows) * Size(8));
  plan.labelled = part(Size(plan.rows) * Size(4));
  plan.logits = matrixPart(kF32, plan.chunkRows, plan.vocab);
  plan.gathered = matrixPart(plan.productType, plan.chunkRows, plan.hidden);
  if (plan.hasPanels()) {
    // Whole 16 bytes of logits, so that a panel's part of them is aligned.
    const int64_t rows = kHeadPanelBytes / 4 / plan.hidden / 4 * 4;
    plan.panelRows = std::min(std::max<int64_t>(rows, 4), plan.vocab);
    plan.panel = matrixPart(kF32, plan.panelRows, plan.hidden);
  }
  plan.scratch = cublasScratch(plan.logitsProduct(plan.chunkRows, plan.vocab));
  if (!plan.hasGradient)
    return plan;
  plan.gradient = matrixPart(plan.gradientType, plan.chunkRows, plan.hidden);
  const GemmProblem ofHidden =
      plan.hiddenGradientProduct(plan.chunkRows, plan.panelRows, false);
  plan.scratch =
      largest(largest(plan.scratch, cublasScratch(ofHidden)),
              cublasScratch(plan.weightGradientProduct(plan.chunkRows)));
  return plan;
}

/// A chunk reads the whole weight once for each product: below 140 to 250 rows
/// that takes longer than the arithmetic, by the rates of DeviceProfiles.cpp.
/// The hidden gradient of 256 rows of 4,096 is 32 tiles of 128 by 256, of 1,024
/// rows 128, one for nearly every multiprocessor of a large card.
void head_loss::cuda::tune(KernelRequest &r, WorkspaceSize size) {
  const int64_t fit = kHeadLogitsBytes / 4 / r.constant("vocab") / 64 * 64;
  const int64_t least =
      size == WorkspaceSize::kLarge ? kHeadLargeChunk : kHeadChunk;
  int64_t &chunk = r.constants[r.op->constantIndex("chunk_rows")];
  const int64_t most =
      size == WorkspaceSize::kSmall ? chunk : r.constant("rows");
  chunk = std::min(most, std::max(fit, least));
}

void head_loss_grad::cuda::tune(KernelRequest &r, WorkspaceSize size) {
  head_loss::cuda::tune(r, size);
}

Reason head_loss::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t head_loss::cuda::workspaceBytes(const KernelRequest &r) {
  return CudaHeadPlan::of(r).total().bytes();
}

Reason head_loss_grad::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t head_loss_grad::cuda::workspaceBytes(const KernelRequest &r) {
  return CudaHeadPlan::of(r).total().bytes();
}

// Walks over rows
// -----------------------------------------------------------------

Reason embedding::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t embedding::cuda::workspaceBytes(const KernelRequest &) { return 0; }

Reason embedding_grad::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t embedding_grad::cuda::workspaceBytes(const KernelRequest &) {
  return 0;
}

Reason column_sum::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t column_sum::cuda::workspaceBytes(const KernelRequest &r) {
  return (Size(kCudaColumnSumPartials) * Size(r.constant("columns")) * Size(4))
      .bytes();
}

Reason accumulate::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t accumulate::cuda::workspaceBytes(const KernelRequest &) { return 0; }

Reason copy_rows::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t copy_rows::cuda::workspaceBytes(const KernelRequest &) { return 0; }

Reason clip_norm::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t clip_norm::cuda::workspaceBytes(const KernelRequest &r) {
  return reference::workspaceBytes(r);
}

} // namespace qlora::requests
