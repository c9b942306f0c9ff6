// SPDX-License-Identifier: MIT

// The workspaces of CUDA kernels, and how attention and the LM head divide
// work. CudnnWorkspaces.cpp has those of cuDNN.

#include "runtime/Kernels/Plans/CudaWorkspaces.h"

#include <algorithm>

namespace qlora::plans {

static constexpr qlora_dtype kF32 = QLORA_DTYPE_F32;
static constexpr qlora_dtype kBF16 = QLORA_DTYPE_BF16;

// Matmuls ---------------------------------------------------------------------

/// Returns cuBLASLt's scratch bytes: 16 f32 partial sums per element of c.
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

uint64_t cublasWorkspace(const KernelRequest &r) {
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

uint64_t decodedPanelWorkspace(const KernelRequest &r) {
  return CudaPanelPlan::of(r).product().total.bytes();
}

/// Limits of Device/FewRows.cu.
Reason panel_matmul::tensor::limits(const KernelRequest &r) {
  if (r.constant("m") > kFewRowsMost)
    return refusalOf(r, "m", "be at most " + std::to_string(kFewRowsMost));
  if (!r.constant("transpose_w"))
    return refusalOf(r, "transpose_w", "be 1");
  if (r.type("a") != QLORA_DTYPE_BF16)
    return "tensor cores would round a";
  if (!storedFormat(r.type("w")))
    return "w is not quantized";
  if (Reason reason = needMultiples(r, kFewRowsRun, {"columns", "block"}))
    return reason;
  return needMultiples(r, kNumbersOfLoad, {"lda"});
}

CudaInt8Plan CudaInt8Plan::of(const KernelRequest &r) {
  const Size m = r.constant("m"), columns = r.constant("columns");
  WorkspaceLayout layout(kCudaAlignment);
  CudaInt8Plan plan;
  plan.codes = layout.add(m * columns);
  plan.scales = layout.add(m * Size(4));
  plan.marks = layout.add(columns * Size(4));
  plan.total = layout.end();
  return plan;
}

uint64_t cudaInt8Workspace(const KernelRequest &r) {
  return CudaInt8Plan::of(r).total.bytes();
}

/// Limits of Device/GroupedBF16.cu.
Reason grouped_matmul::tensor::limits(const KernelRequest &r) {
  if (r.type("a") != QLORA_DTYPE_BF16)
    return "tensor cores would round a";
  if (r.constant("groups_last"))
    return "matrices of groups are in turns";
  // In the backward, k is the number of rows in a group's matrix. These rows
  // must fill whole loads.
  if (!r.constant("transpose_w") &&
      r.constant("rows") / r.constant("groups") % kNumbersOfLoad != 0)
    return "rows of a matrix do not fill loads";
  return needMultiples(r, kNumbersOfLoad, {"columns", "lda"});
}

uint64_t cudaGroupedWorkspace(const KernelRequest &r) {
  if (r.type("w") == r.type("a"))
    return 0;
  return packed(r.type("a"), r.constant("rows"), r.constant("columns")).bytes();
}

// Attention -------------------------------------------------------------------

Size cudaAttentionDelta(const KernelRequest &r) {
  return Size(r.constant("batch")) * Size(r.constant("heads")) *
         Size(r.constant("length")) * Size(4);
}

uint64_t attentionDeltaWorkspace(const KernelRequest &r) {
  return cudaAttentionDelta(r).bytes();
}

CudaCachedPlan CudaCachedPlan::of(const KernelRequest &r) {
  const int64_t length = r.constant("length"), dim = r.constant("dim");
  const int64_t keyHeads = r.constant("kv_heads");
  const int64_t group = r.constant("heads") / keyHeads;
  const int64_t tokens = std::max<int64_t>(kCachedRows / group, 1);
  const Size blocks = Size(r.constant("batch")) *
                      Size(dividedUp(length, tokens)) * Size(keyHeads) *
                      Size(dividedUp(group, kCachedRows)) *
                      Size(dividedUp(dim, kCachedDims));
  // A block's tokens see `span` positions, from any position on.
  const int64_t window = r.constant("window");
  const int64_t span =
      (window == 0 ? r.constant("entries") : window) + tokens - 1;
  const int64_t ranges = dividedUp(span - 1, kCachedRangeKeys) + 1;
  CudaCachedPlan plan;
  Size all = blocks;
  if (ranges > 1 && blocks.bytes() < uint64_t(kCachedFewBlocks)) {
    plan.ranges = ranges;
    all = blocks * Size(ranges);
    const Size states = Size(r.constant("batch")) * Size(length) *
                        Size(r.constant("heads")) * Size(ranges) * Size(4);
    WorkspaceLayout layout(kCudaAlignment);
    plan.values = layout.add(states * Size(dim));
    plan.states = layout.add(states * Size(2));
    plan.total = layout.end();
  }
  plan.blocks =
      static_cast<int64_t>(std::min<uint64_t>(all.bytes(), uint64_t(1) << 62));
  return plan;
}

uint64_t cudaCachedWorkspace(const KernelRequest &r) {
  return CudaCachedPlan::of(r).total.bytes();
}

// LM head and cross-entropy ---------------------------------------------------

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
  plan.vocab = headWords(r);
  plan.chunkRows = std::min(r.constant("chunk_rows"), plan.rows);
  plan.hiddenType = r.type("hidden");
  plan.weightType = r.type("w");
  plan.productType =
      plan.hiddenType == plan.weightType ? plan.hiddenType : kF32;
  plan.hasGradient = hasHeadGradient(r);
  plan.hasWeightGradient = hasHeadWeightGradient(r);
  const bool isPart = r.op->name == "head_part";
  plan.dhiddenType = plan.hasGradient && !isPart ? r.type("dhidden") : kF32;
  plan.gradientType = plan.productType == kBF16 ? plan.dhiddenType : kF32;
  plan.panelRows = plan.vocab;
  WorkspaceLayout layout(kCudaAlignment);
  if (!isPart)
    plan.rowLosses = layout.add(Size(plan.rows) * Size(8));
  plan.labelled = layout.add(Size(plan.rows) * Size(4));
  plan.logits = layout.add(packed(kF32, plan.chunkRows, plan.vocab));
  plan.gathered =
      layout.add(packed(plan.productType, plan.chunkRows, plan.hidden));
  if (plan.hasPanels()) {
    // A multiple of 4 rows, so that a panel's logits are aligned to 16 bytes.
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

/// Sets the rows of a chunk. A chunk reads the complete weight once per matmul.
/// With fewer rows than 140 to 250 (depending on the GPU, KnownGpus.cpp),
/// reading takes longer than arithmetic. With 256 rows and hidden size 4,096,
/// the hidden gradient has 32 tiles of 128 by 256. With 1,024 rows it has 128
/// tiles, one for nearly every multiprocessor of a large GPU.
void tuneCudaHead(KernelRequest &r, WorkspaceSize size) {
  const int64_t fit = kHeadLogitsBytes / 4 / headWords(r) / 64 * 64;
  const int64_t least =
      size == WorkspaceSize::kLarge ? kHeadLargeChunk : kHeadChunk;
  int64_t &chunk = r.constants[r.op->constantIndex("chunk_rows")];
  const int64_t most =
      size == WorkspaceSize::kSmall ? chunk : r.constant("rows");
  chunk = std::min(most, std::max(fit, least));
}

uint64_t cudaHeadWorkspace(const KernelRequest &r) {
  return CudaHeadPlan::of(r).total.bytes();
}

CudaHeadMergePlan CudaHeadMergePlan::of(const KernelRequest &r) {
  WorkspaceLayout layout(kCudaAlignment);
  CudaHeadMergePlan plan;
  const bool isSmooth = r.constantAsDouble("smoothing") != 0;
  plan.losses = layout.add(Size(r.constant("own")) * Size(8));
  if (r.dtype("gradient"))
    plan.factors =
        layout.add(Size(r.constant("rows")) * Size(4) * Size(isSmooth ? 3 : 2));
  if (r.dtype("gradient") && isSmooth) {
    const int64_t hidden = r.constant("hidden_size");
    plan.wordSums = layout.add(packed(kF32, 1, hidden));
    plan.wordPartials =
        layout.add(packed(kF32, kCudaColumnSumPartials, hidden));
  }
  plan.total = layout.end();
  return plan;
}

uint64_t cudaHeadMergeWorkspace(const KernelRequest &r) {
  return CudaHeadMergePlan::of(r).total.bytes();
}

// Walks over rows -------------------------------------------------------------

uint64_t cudaColumnSumWorkspace(const KernelRequest &r) {
  return packed(kF32, kCudaColumnSumPartials, r.constant("columns")).bytes();
}

} // namespace qlora::plans
