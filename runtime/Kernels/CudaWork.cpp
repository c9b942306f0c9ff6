// SPDX-License-Identifier: MIT

// The work of each kernel that a CUDA row launches (CostModel.h). Must match
// the host code in Cuda/, which uses the same plans (Plans/CudaWorkspaces.h).

#include "runtime/Kernels/CostModel.h"

#include "runtime/Kernels/Plans/CudaWorkspaces.h"

#include <algorithm>
#include <cassert>
#include <utility>

using namespace qlora;
using namespace qlora::plans;

using Kernels = std::vector<Work>;

/// Work of reading elements in one type and writing them in another.
static Work conversionWork(double elements, qlora_dtype from, qlora_dtype to) {
  return rowWork(elements * (dtypeBits(from) + dtypeBits(to)) / 8, 0);
}

/// Work of a GEMM and of the conversions that its types need (CudaGemmPlan).
static Kernels productWork(const GemmProblem &p) {
  const GemmProblem inner = CudaGemmPlan::of(p).product;
  const bool adds = p.beta != 0;
  Kernels kernels;
  if (p.a != inner.a)
    kernels.push_back(conversionWork(double(p.m) * p.k, p.a, inner.a));
  if (p.b != inner.b)
    kernels.push_back(conversionWork(double(p.k) * p.n, p.b, inner.b));
  if (p.c != inner.c && adds)
    kernels.push_back(conversionWork(double(p.m) * p.n, p.c, inner.c));
  Work product = gemmWork(p.m, p.n, p.k, inner.a, inner.b, inner.c, adds);
  if (std::min({p.m, p.n, p.k}) <= kThinSide)
    product.thinBytes = product.bytes;
  kernels.push_back(product);
  if (p.c != inner.c)
    kernels.push_back(conversionWork(double(p.m) * p.n, inner.c, p.c));
  return kernels;
}

static Kernels matmulWork(const KernelRequest &r) {
  return productWork(matmulProblem(r));
}

static void append(Kernels &to, const Kernels &more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// Work of decoding the complete weight, as by the op `decode`.
static Work panelDecodeWork(const KernelRequest &r) {
  KernelRequest decode{findKernelOp("decode"), {}, {}};
  decode.dtypes = {r.dtype("w"), r.dtype("a")};
  for (const std::string &name : decode.op->constants)
    decode.constants.push_back(r.constant(name));
  return kernelWork(decode);
}

/// Single-lane instructions of panel_matmul.tensor for an element of W. A
/// multiprocessor looks up 32 elements per clock in shared memory, and issues
/// 128 instructions. So a look-up counts four times, while address, product and
/// rounding are computed. Loads and scales add an eighth.
static constexpr double kFewRowsInstructions = 4.5;

/// Work of panel_matmul.tensor, which reads W once, as the CPU row `streamed`
/// does, and accepts only requests that this one accepts.
static Kernels fewRowsWork(const KernelRequest &r) {
  Work work = kernelWork(r);
  work.bf16Flops = std::exchange(work.f32Flops, 0);
  work.laneInstructions =
      kFewRowsInstructions * std::exchange(work.decodedNumbers, 0);
  return {work};
}

static Kernels panelMatmulWork(const KernelRequest &r) {
  if (!panel_matmul::tensor::limits(r))
    return fewRowsWork(r);
  const CudaPanelPlan plan = CudaPanelPlan::of(r);
  Kernels kernels;
  if (plan.decoded)
    kernels.push_back(panelDecodeWork(r));
  append(kernels, productWork(plan.problem));
  return kernels;
}

/// Work of this project's grouped kernels, at their tensor core or f32 rate.
static Kernels groupedWork(const KernelRequest &r) {
  Work product = kernelWork(r);
  const double flops = std::exchange(product.panelF32Flops, 0) +
                       std::exchange(product.panelBf16Flops, 0) +
                       std::exchange(product.bf16Flops, 0) +
                       std::exchange(product.f32Flops, 0);
  const bool isOnTensorCores =
      r.op->name == "grouped_matmul" && !grouped_matmul::tensor::limits(r);
  (isOnTensorCores ? product.panelBf16Flops : product.f32Flops) = flops;
  product.thinBytes = product.decodedNumbers = product.waitedBytes = 0;
  Kernels kernels;
  if (r.op->name == "grouped_matmul" && r.dtype("w") != r.dtype("a"))
    kernels.push_back(panelDecodeWork(r));
  kernels.push_back(product);
  return kernels;
}

/// Work of the softmax over a chunk's logits, which exceed the caches. Counts
/// two reads for maximum and sum, although the kernel (HeadRows.cuh) needs only
/// one. The gradient adds a read, and a write that overwrites the logits.
static Work softmaxWork(const CudaHeadPlan &plan, double rows) {
  const double logits = rows * plan.vocab;
  double bytes = 2 * 4 * logits;
  if (plan.hasGradient)
    bytes += (4 + dtypeBits(plan.productType) / 8) * logits;
  return rowWork(bytes, (plan.hasGradient ? 2 : 1) * logits);
}

/// Work of the conversions and GEMMs of all panels of w. `product` returns a
/// panel's GEMM, given its number of rows and whether the GEMM accumulates.
template <typename Product>
static Kernels panelsWork(const CudaHeadPlan &plan, Product product) {
  Kernels kernels;
  for (int64_t first = 0; first < plan.vocab; first += plan.panelRows) {
    const int64_t words = std::min(plan.panelRows, plan.vocab - first);
    if (plan.hasPanels())
      kernels.push_back(conversionWork(double(words) * plan.hidden,
                                       plan.weightType, plan.productType));
    append(kernels, productWork(product(words, first > 0)));
  }
  return kernels;
}

/// Work of the LM head's kernels for one chunk of rows.
static Kernels chunkWork(const CudaHeadPlan &plan, int64_t rows) {
  const double elements = double(rows) * plan.hidden;
  Kernels kernels = {
      conversionWork(elements, plan.hiddenType, plan.productType)};
  append(kernels, panelsWork(plan, [&](int64_t words, bool) {
           return plan.logitsProduct(rows, words);
         }));
  kernels.push_back(softmaxWork(plan, double(rows)));
  if (!plan.hasGradient)
    return kernels;
  append(kernels, panelsWork(plan, [&](int64_t words, bool adds) {
           return plan.hiddenGradientProduct(rows, words, adds);
         }));
  kernels.push_back(
      conversionWork(elements, plan.gradientType, plan.dhiddenType));
  if (plan.hasWeightGradient)
    append(kernels, productWork(plan.weightGradientProduct(rows)));
  return kernels;
}

/// Assumes that every row has a label: the count is not known at compile time.
static Kernels headWork(const KernelRequest &r) {
  const CudaHeadPlan plan = CudaHeadPlan::of(r);
  Kernels kernels;
  kernels.push_back(rowWork(12.0 * plan.rows, 0)); // the list of rows
  for (int64_t first = 0; first < plan.rows; first += plan.chunkRows)
    append(kernels,
           chunkWork(plan, std::min(plan.chunkRows, plan.rows - first)));
  // A kernel that sums the losses, or writes the states of unlabelled rows.
  kernels.push_back(rowWork(12.0 * plan.rows, 0));
  return kernels;
}

/// Work of cached_attention, and of joining the ranges if they have separate
/// blocks. As in kernelWork(), slots without a window are half full.
static Kernels cachedAttentionWork(const KernelRequest &r) {
  const CudaCachedPlan plan = CudaCachedPlan::of(r);
  Kernels kernels = {kernelWork(r)};
  if (plan.ranges == 0)
    return kernels;
  const double bytes = double(plan.values.bytes + plan.states.bytes) /
                       (r.constant("window") == 0 ? 2 : 1);
  kernels[0].bytes += bytes;
  kernels.push_back(rowWork(bytes, 0));
  return kernels;
}

namespace {
struct CudaWorkRow {
  std::string_view op;
  Kernels (*work)(const KernelRequest &);
};
} // namespace

/// Ops whose work on a GPU differs from kernelWork(), most because a launch
/// runs several kernels.
static constexpr CudaWorkRow kRows[] = {
    {"matmul", matmulWork},
    {"panel_matmul", panelMatmulWork},
    {"head_loss", headWork},
    {"head_loss_grad", headWork},
    {"head_part", headWork},
    {"grouped_matmul", groupedWork},
    {"grouped_weight_grad", groupedWork},
    {"cached_attention", cachedAttentionWork},
};

static const KernelRow &firstRow(const KernelRequest &request) {
  const std::vector<KernelRow> &rows = kernelRows();
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const KernelRow &row) {
        return row.op == request.op && row.target == "cuda" &&
               !row.reject(request);
      });
  assert(found != rows.end() && "a valid request, which the last row accepts");
  return *found;
}

/// Moves the attention counts from this project's kernels to cuDNN's.
static void giveToCudnn(Work &work) {
  constexpr auto kFirst = size_t(AttentionKernel::kCudnnForward);
  std::swap_ranges(work.attention.begin(), work.attention.begin() + kFirst,
                   work.attention.begin() + kFirst);
}

Kernels qlora::cudaKernelWork(const KernelRequest &request,
                              const KernelRow *row) {
  for (const CudaWorkRow &kind : kRows)
    if (kind.op == request.op->name)
      return kind.work(request);
  Work work = kernelWork(request);
  if (work.attentionFlops() > 0 &&
      (row ? *row : firstRow(request)).implementation == "cudnn")
    giveToCudnn(work);
  return {work};
}
