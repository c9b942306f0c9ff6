// SPDX-License-Identifier: MIT

// The cost model: counts per op of Kernels.def, and rates (CostModel.h).

#include "runtime/Kernels/CostModel.h"

#include "runtime/Kernels/Math/NF4.h"

#include <algorithm>
#include <cassert>

using namespace qlora;

/// Starting a kernel on the threads of a rank and waiting for the last.
static constexpr double kLaunchSeconds = 5e-6;
/// Share of the f32 GEMM rate that the attention kernels reach.
static constexpr double kAttentionEfficiency = 0.35;
/// Share of the GEMM rate that the products of panels reach, by what they
/// multiply: each is thin, and where it is a range of c's columns it is not
/// dense, which only bf16 is copied for. Measured: f32 0.35 to 1, bf16 0.83 to
/// 0.97.
static constexpr double kPanelEfficiencyF32 = 0.65;
static constexpr double kPanelEfficiencyBf16 = 0.88;
/// exp and its like, vectorised, per core and second.
static constexpr double kTranscendentalRate = 4e8;
/// A matrix that is read and written once per panel stays in a cache, which
/// is this much faster than memory.
static constexpr double kCacheSpeed = 4.0;

Work &Work::operator+=(const Work &other) {
  f32Flops += other.f32Flops;
  bf16Flops += other.bf16Flops;
  attentionF32Flops += other.attentionF32Flops;
  attentionForwardFlops += other.attentionForwardFlops;
  attentionBackwardFlops += other.attentionBackwardFlops;
  bytes += other.bytes;
  packedBytes += other.packedBytes;
  decodedNumbers += other.decodedNumbers;
  transcendentals += other.transcendentals;
  launches += other.launches;
  return *this;
}

Work &Work::operator*=(double times) {
  for (double *count :
       {&f32Flops, &bf16Flops, &attentionF32Flops, &attentionForwardFlops,
        &attentionBackwardFlops, &bytes, &packedBytes, &decodedNumbers,
        &transcendentals, &launches})
    *count *= times;
  return *this;
}

Work qlora::operator+(Work left, const Work &right) { return left += right; }

static double attentionSeconds(const Work &work, const DeviceProfile &device) {
  const double slow = device.gemmF32Gflops * 1e9 * kAttentionEfficiency;
  if (!device.gpu)
    return work.attentionFlops() / slow;
  return work.attentionF32Flops / slow +
         work.attentionForwardFlops /
             (device.gpu->attentionForwardGflops * 1e9) +
         work.attentionBackwardFlops /
             (device.gpu->attentionBackwardGflops * 1e9);
}

Demand qlora::demandOf(const Work &work, const DeviceProfile &device) {
  const double decode = 4 * work.decodedNumbers / (device.decodeGbps * 1e9);
  Demand demand;
  demand.arithmetic = work.f32Flops / (device.gemmF32Gflops * 1e9) +
                      work.bf16Flops / (device.gemmBf16Gflops * 1e9) +
                      attentionSeconds(work, device);
  demand.memory = work.bytes / (device.copyGbps * 1e9);
  if (!device.gpu) {
    demand.launch = work.launches * kLaunchSeconds;
    demand.serial =
        decode + work.packedBytes / (device.copyGbps * 1e9) +
        work.transcendentals / (kTranscendentalRate * device.cores);
    return demand;
  }
  demand.launch = work.launches * device.gpu->launchMicroseconds * 1e-6;
  // An attention kernel's rate is that of the kernel, exponentials included.
  const double functions =
      work.attentionFlops() > 0
          ? 0
          : work.transcendentals / (device.gpu->functionGops * 1e9);
  demand.arithmetic = std::max(demand.arithmetic, functions);
  // Decoding keeps the memory busy, and not what GEMMs multiply with.
  demand.memory = std::max(demand.memory, decode);
  return demand;
}

double qlora::secondsOf(const Work &work, const DeviceProfile &device) {
  return demandOf(work, device).seconds();
}

double qlora::secondsOf(const KernelRequest &request,
                        const DeviceProfile &device) {
  if (!device.gpu)
    return secondsOf(kernelWork(request), device);
  double seconds = 0;
  for (const Work &work : cudaKernelWork(request))
    seconds += secondsOf(work, device);
  return seconds;
}

Work qlora::rowWork(double bytes, double transcendentals) {
  Work work;
  work.bytes = bytes;
  work.transcendentals = transcendentals;
  work.launches = 1;
  return work;
}

static double bytesOf(double elements, qlora_dtype dtype) {
  return elements * dtypeBits(dtype) / 8;
}

/// A weight as it is stored: `w` of panel_matmul and decode.
static double storedBytes(const KernelRequest &r) {
  const int64_t elements = r.constant("rows") * r.constant("columns");
  const qlora_dtype dtype = *r.dtype("w");
  if (dtype != QLORA_DTYPE_NF4)
    return bytesOf(double(elements), dtype);
  return double(NF4Layout::of(elements, r.constant("block"),
                              r.constant("double_quant") != 0)
                    .bytes);
}

/// bf16 and f16 only change width, as fast as they are read.
static double decodedNumbers(double elements, qlora_dtype stored) {
  return stored == QLORA_DTYPE_NF4 ? elements : 0;
}

Work qlora::gemmWork(int64_t m, int64_t n, int64_t k, qlora_dtype a,
                     qlora_dtype b, qlora_dtype c, bool accumulates) {
  Work work;
  double flops = 2.0 * m * n * k;
  bool isBf16 = a == QLORA_DTYPE_BF16 && b == QLORA_DTYPE_BF16;
  (isBf16 ? work.bf16Flops : work.f32Flops) = flops;
  work.bytes = bytesOf(double(m) * k, a) + bytesOf(double(n) * k, b) +
               bytesOf(double(m) * n, c) * (accumulates ? 2 : 1);
  work.packedBytes = 2 * bytesOf(double(n) * k, b);
  work.launches = 1;
  return work;
}

Work qlora::attentionWork(const AttentionShape &shape, qlora_dtype dtype,
                          bool backward) {
  // A query sees itself and what is before it, but no more than the window.
  double length = shape.length;
  double window = shape.window > 0 ? std::min<double>(shape.window, length)
                                   : length;
  double pairs = window * (length - window) + window * (window + 1) / 2;
  pairs *= double(shape.batch) * shape.heads;
  Work work;
  const double flops = (backward ? 2.5 : 1.0) * 4 * pairs * shape.dim;
  (dtype == QLORA_DTYPE_F32 ? work.attentionF32Flops
   : backward               ? work.attentionBackwardFlops
                            : work.attentionForwardFlops) = flops;
  work.transcendentals = pairs;
  double tokens = double(shape.batch) * shape.length;
  double elements = tokens * shape.dim * (2 * shape.heads + 2 * shape.kvHeads);
  work.bytes = bytesOf(elements * (backward ? 2 : 1), dtype);
  work.launches = 1;
  return work;
}

//===----------------------------------------------------------------------===//
// Ops of Kernels.def
//===----------------------------------------------------------------------===//

static Work matmulWork(const KernelRequest &r) {
  return gemmWork(r.constant("m"), r.constant("n"), r.constant("k"),
                  *r.dtype("a"), *r.dtype("b"), *r.dtype("c"),
                  r.constant("beta") != 0);
}

static Work panelMatmulWork(const KernelRequest &r) {
  int64_t m = r.constant("m"), rows = r.constant("rows"),
          columns = r.constant("columns");
  bool transpose = r.constant("transpose_w");
  qlora_dtype compute = *r.dtype("a");
  Work work = transpose ? gemmWork(m, rows, columns, compute, compute,
                                   *r.dtype("c"), r.constant("beta") != 0)
                        : gemmWork(m, columns, rows, compute, compute,
                                   *r.dtype("c"), r.constant("beta") != 0);
  // W comes from memory as it is stored; its numbers stay in cache.
  double weights = double(rows) * columns;
  work.bytes += storedBytes(r) - bytesOf(weights, compute);
  work.packedBytes /= kCacheSpeed;
  work.decodedNumbers = decodedNumbers(weights, *r.dtype("w"));
  // Without the transpose every panel adds to the whole of c.
  if (!transpose) {
    double panels = std::max<double>(1, rows / double(std::max<int64_t>(
                                            1, r.constant("panel_rows"))));
    work.bytes += (panels - 1) * 2 * bytesOf(double(m) * columns,
                                             *r.dtype("c")) / kCacheSpeed;
  }
  return work;
}

static Work decodeWork(const KernelRequest &r) {
  double elements = double(r.constant("rows")) * r.constant("columns");
  Work work = rowWork(storedBytes(r) + bytesOf(elements, *r.dtype("out")), 0);
  work.decodedNumbers = decodedNumbers(elements, *r.dtype("w"));
  return work;
}

static Work quantizeWork(const KernelRequest &r) {
  const double elements = double(r.constant("elements"));
  return rowWork(bytesOf(elements, *r.dtype("x")) + elements / 2 +
                     4 * elements / double(r.constant("block")),
                 0);
}

static Work quantizeScalesWork(const KernelRequest &r) {
  return rowWork(2 * 4 * double(r.constant("blocks")), 0);
}

static AttentionShape attentionShape(const KernelRequest &r) {
  return {r.constant("batch"),    r.constant("length"), r.constant("heads"),
          r.constant("kv_heads"), r.constant("dim"),    r.constant("window")};
}

static Work attentionForwardWork(const KernelRequest &r) {
  return attentionWork(attentionShape(r), *r.dtype("q"), false);
}

static Work attentionBackwardWork(const KernelRequest &r) {
  return attentionWork(attentionShape(r), *r.dtype("q"), true);
}

/// `products` GEMMs of rows x hidden_size x vocab. Rows without a label are
/// skipped, but how many there are is not known here: as if none were.
static Work headWork(const KernelRequest &r, int products) {
  int64_t rows = r.constant("rows"), hidden = r.constant("hidden_size"),
          vocab = r.constant("vocab");
  Work work;
  for (int i = 0; i < products; ++i)
    work += gemmWork(rows, vocab, hidden, *r.dtype("hidden"), *r.dtype("w"),
                     QLORA_DTYPE_F32, false);
  work.transcendentals = double(rows) * vocab;
  return work;
}

static Work headLossWork(const KernelRequest &r) { return headWork(r, 1); }

static Work headLossGradWork(const KernelRequest &r) {
  return headWork(r, r.dtype("dw") ? 3 : 2);
}

/// Reads and writes rows of a table.
static Work embeddingWork(const KernelRequest &r) {
  double elements = double(r.constant("rows")) * r.constant("columns");
  return rowWork(2 * bytesOf(elements, *r.dtype("w")), 0);
}

static Work embeddingGradWork(const KernelRequest &r) {
  double elements = double(r.constant("rows")) * r.constant("columns");
  return rowWork(bytesOf(elements, *r.dtype("dout")) +
                     2 * bytesOf(elements, *r.dtype("dw")),
                 0);
}

static Work columnSumWork(const KernelRequest &r) {
  double elements = double(r.constant("rows")) * r.constant("columns");
  return rowWork(bytesOf(elements, *r.dtype("x")), 0);
}

static Work accumulateWork(const KernelRequest &r) {
  double elements = double(r.constant("rows")) * r.constant("columns");
  return rowWork(bytesOf(elements, *r.dtype("x")) +
                     2 * bytesOf(elements, *r.dtype("y")),
                 0);
}

static Work copyRowsWork(const KernelRequest &r) {
  double elements = double(r.constant("rows")) * r.constant("columns");
  return rowWork(bytesOf(elements, *r.dtype("x")) +
                     bytesOf(elements, *r.dtype("out")),
                 0);
}

static Work clipNormWork(const KernelRequest &r) {
  return rowWork(bytesOf(r.constant("elements"), *r.dtype("gradient")), 0);
}

namespace {
struct KernelWorkRow {
  std::string_view op;
  WorkCategory category;
  Work (*work)(const KernelRequest &);
  /// Share of the GEMM rate that is reached, by what is multiplied.
  double efficiencyF32 = 1, efficiencyBf16 = 1;
};
} // namespace

static constexpr KernelWorkRow kRows[] = {
    {"matmul", WorkCategory::kGemm, matmulWork},
    {"panel_matmul", WorkCategory::kGemm, panelMatmulWork,
     kPanelEfficiencyF32, kPanelEfficiencyBf16},
    {"decode", WorkCategory::kDecode, decodeWork},
    {"quantize", WorkCategory::kRows, quantizeWork},
    {"quantize_scales", WorkCategory::kRows, quantizeScalesWork},
    {"attention", WorkCategory::kAttention, attentionForwardWork},
    {"attention_grad", WorkCategory::kAttention, attentionBackwardWork},
    {"head_loss", WorkCategory::kHead, headLossWork},
    {"head_loss_grad", WorkCategory::kHead, headLossGradWork},
    {"embedding", WorkCategory::kRows, embeddingWork},
    {"embedding_grad", WorkCategory::kRows, embeddingGradWork},
    {"column_sum", WorkCategory::kRows, columnSumWork},
    {"accumulate", WorkCategory::kRows, accumulateWork},
    {"copy_rows", WorkCategory::kRows, copyRowsWork},
    {"clip_norm", WorkCategory::kRows, clipNormWork},
};

static const KernelWorkRow *findRow(std::string_view op) {
  const KernelWorkRow *end = std::end(kRows);
  const KernelWorkRow *row = std::find_if(
      kRows, end, [&](const KernelWorkRow &row) { return row.op == op; });
  return row == end ? nullptr : row;
}

bool qlora::hasKernelWork(std::string_view op) { return findRow(op); }

Work qlora::kernelWork(const KernelRequest &request) {
  const KernelWorkRow *row = findRow(request.op->name);
  assert(row && "an op of Kernels.def without a row in CostModel.cpp");
  Work work = row->work(request);
  work.f32Flops /= row->efficiencyF32;
  work.bf16Flops /= row->efficiencyBf16;
  return work;
}

double qlora::neededFlops(const KernelRequest &request) {
  const KernelWorkRow *row = findRow(request.op->name);
  assert(row && "an op of Kernels.def without a row in CostModel.cpp");
  const Work work = row->work(request);
  return work.gemmFlops() + work.attentionFlops();
}

WorkCategory qlora::categoryOf(const KernelOp &op) {
  const KernelWorkRow *row = findRow(op.name);
  assert(row && "an op of Kernels.def without a row in CostModel.cpp");
  return row->category;
}
