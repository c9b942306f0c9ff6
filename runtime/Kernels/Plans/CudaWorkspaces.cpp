// SPDX-License-Identifier: MIT

// The workspaces of the CUDA rows but cuDNN's, and how the head is cut.

#include "runtime/Kernels/Plans/CudaWorkspaces.h"

#include <algorithm>

namespace qlora::plans {

static constexpr qlora_dtype kF32 = QLORA_DTYPE_F32;
static constexpr qlora_dtype kBF16 = QLORA_DTYPE_BF16;

// Matrix products -------------------------------------------------------------

/// Room for a depth that is split into 16 partial results.
static Size cublasScratch(const GemmProblem &p) {
  const Size wanted =
      (Size(p.m) * Size(p.n) * Size(64)).aligned(kCudaAlignment);
  return static_cast<int64_t>(
      std::min<uint64_t>(wanted.bytes(), kCublasScratch));
}

CudaGemmPlan CudaGemmPlan::of(const GemmProblem &p, Size begin) {
  const qlora_dtype type =
      (p.a == kBF16 && p.b == kBF16) || p.isBF16() ? kBF16 : kF32;
  CudaGemmPlan plan;
  plan.product = p;
  plan.product.a = plan.product.b = type;
  WorkspaceLayout layout(kCudaAlignment, begin);
  if (p.a != type) {
    plan.a = layout.add(packed(type, p.m, p.k));
    plan.product.lda = p.transposeA ? p.m : p.k;
  }
  if (p.b != type) {
    plan.b = layout.add(packed(type, p.k, p.n));
    plan.product.ldb = p.transposeB ? p.k : p.n;
  }
  if (p.c != kF32 && p.c != type) {
    plan.c = layout.add(packed(kF32, p.m, p.n));
    plan.product.c = kF32;
    plan.product.ldc = p.n;
  }
  plan.scratch = layout.add(cublasScratch(p));
  plan.total = layout.end();
  return plan;
}

uint64_t matmul::cublaslt::workspaceBytes(const KernelRequest &r) {
  return CudaGemmPlan::of(matmulProblem(r)).total.bytes();
}

CudaPanelPlan CudaPanelPlan::of(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const bool isForward = r.constant("transpose_w") != 0;
  const qlora_dtype type = r.type("a");
  CudaPanelPlan plan;
  if (r.type("w") != type)
    plan.decoded =
        WorkspaceLayout(kCudaAlignment).add(packed(type, rows, columns));
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
                  r.type("c"),
                  static_cast<float>(r.constantAsDouble("alpha")),
                  static_cast<float>(r.constantAsDouble("beta"))};
  return plan;
}

uint64_t panel_matmul::decoded::workspaceBytes(const KernelRequest &r) {
  return CudaPanelPlan::of(r).product().total.bytes();
}

// Attention
// ---------------------------------------------------------------------

Size cudaAttentionDelta(const KernelRequest &r) {
  return Size(r.constant("batch")) * Size(r.constant("heads")) *
         Size(r.constant("length")) * Size(4);
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
  plan.hiddenType = r.type("hidden");
  plan.weightType = r.type("w");
  plan.productType =
      plan.hiddenType == plan.weightType ? plan.hiddenType : kF32;
  plan.hasGradient = r.op->name == "head_loss_grad";
  plan.dhiddenType = plan.hasGradient ? r.type("dhidden") : kF32;
  plan.gradientType = plan.productType == kBF16 ? plan.dhiddenType : kF32;
  plan.panelRows = plan.vocab;
  WorkspaceLayout layout(kCudaAlignment);
  plan.rowLosses = layout.add(Size(plan.rows) * Size(8));
  plan.labelled = layout.add(Size(plan.rows) * Size(4));
  plan.logits = layout.add(packed(kF32, plan.chunkRows, plan.vocab));
  plan.gathered =
      layout.add(packed(plan.productType, plan.chunkRows, plan.hidden));
  if (plan.hasPanels()) {
    // Whole 16 bytes of logits, so that a panel's part of them is aligned.
    const int64_t rows = kHeadPanelBytes / 4 / plan.hidden / 4 * 4;
    plan.panelRows = std::min(std::max<int64_t>(rows, 4), plan.vocab);
    plan.panel = layout.add(packed(kF32, plan.panelRows, plan.hidden));
  }
  if (plan.hasGradient)
    plan.gradient =
        layout.add(packed(plan.gradientType, plan.chunkRows, plan.hidden));
  plan.scratch = layout.add(plan.productScratch());
  plan.total = layout.end();
  return plan;
}

Size CudaHeadPlan::productScratch() const {
  const Size ofLogits = cublasScratch(logitsProduct(chunkRows, vocab));
  if (!hasGradient)
    return ofLogits;
  const GemmProblem ofHidden =
      hiddenGradientProduct(chunkRows, panelRows, false);
  return largest(largest(ofLogits, cublasScratch(ofHidden)),
                 cublasScratch(weightGradientProduct(chunkRows)));
}

/// A chunk reads the whole weight once for each product: below 140 to 250 rows
/// that takes longer than the arithmetic, by the rates of KnownCards.cpp.
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

uint64_t head_loss::cuda::workspaceBytes(const KernelRequest &r) {
  return CudaHeadPlan::of(r).total.bytes();
}

uint64_t head_loss_grad::cuda::workspaceBytes(const KernelRequest &r) {
  return CudaHeadPlan::of(r).total.bytes();
}

// Walks over rows
// -----------------------------------------------------------------

uint64_t column_sum::cuda::workspaceBytes(const KernelRequest &r) {
  return packed(kF32, kCudaColumnSumPartials, r.constant("columns")).bytes();
}

uint64_t clip_norm::cuda::workspaceBytes(const KernelRequest &r) {
  return cpu::workspaceBytes(r);
}

} // namespace qlora::plans
