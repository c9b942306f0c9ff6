// SPDX-License-Identifier: MIT

// The cost model: counts per op of Kernels.def (CostModel.h).

#include "runtime/Kernels/CostModel.h"

#include "runtime/Kernels/Math/CacheInt8.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Kernels/Plans/Workspaces.h"

#include <algorithm>
#include <cassert>

using namespace qlora;

Work qlora::rowWork(double bytes, double transcendentals) {
  Work work;
  work.bytes = bytes;
  work.transcendentals = transcendentals;
  work.laneInstructions = kRowInstructions * bytes;
  work.launches = 1;
  return work;
}

static double bytesOf(double elements, qlora_dtype dtype) {
  return elements * dtypeBits(dtype) / 8;
}

/// Returns the bytes of the stored weight w of a request.
static double storedBytes(const KernelRequest &r) {
  const int64_t elements = r.constant("rows") * r.constant("columns");
  const qlora_dtype dtype = *r.dtype("w");
  if (!storedFormat(dtype))
    return bytesOf(double(elements), dtype);
  return double(StoredLayout::of(dtype, elements, r.constant("block"),
                              r.constant("double_quant") != 0)
                    .bytes);
}

/// Returns the number of elements that need decoding. bf16 and f16 need none:
/// converting them is as fast as reading.
static double decodedNumbers(double elements, qlora_dtype stored) {
  return storedFormat(stored) ? elements : 0;
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

Work qlora::attentionWork(const AttentionExtents &shape, qlora_dtype dtype,
                          bool backward) {
  // A query sees itself and earlier tokens, within the window.
  double length = shape.length;
  double window = shape.window > 0 ? std::min<double>(shape.window, length)
                                   : length;
  double pairs = window * (length - window) + window * (window + 1) / 2;
  pairs *= double(shape.batch) * shape.heads;
  Work work;
  const double ofPair = (backward ? 2.5 : 1.0) * 4 * shape.dim;
  const double flops = ofPair * pairs;
  const double tokens = double(shape.batch) * shape.length;
  if (dtype == QLORA_DTYPE_F32)
    work.attentionF32Flops = flops;
  else
    work.attention[backward] = {flops, ofPair * tokens * shape.heads};
  work.transcendentals = pairs;
  double elements = tokens * shape.dim * (2 * shape.heads + 2 * shape.kvHeads);
  work.bytes = bytesOf(elements * (backward ? 2 : 1), dtype);
  work.launches = 1;
  return work;
}

// Ops of Kernels.def ---------------------------------------------------------

/// Work of the CPU row `streamed` of matmul and panel_matmul: W is read once,
/// while it is decoded and multiplied in f32.
static Work streamedWork(const KernelRequest &r, double weightBytes,
                         double decodes) {
  const std::vector<OperandShape> shapes = r.op->shapes(r).each;
  const bool adds = r.constantAsDouble("beta") != 0;
  const auto elements = [&](size_t i) {
    return double(shapes[i].rows) * double(shapes[i].columns);
  };
  Work work;
  work.f32Flops = 2 * double(shapes[0].rows) * elements(1);
  work.bytes = weightBytes + bytesOf(elements(0), *r.dtype("a")) +
               bytesOf(elements(2), *r.dtype("c")) * (adds ? 2 : 1);
  work.decodedNumbers = decodes;
  work.launches = 1;
  return work;
}

static Work matmulWork(const KernelRequest &r) {
  if (plans::isStreamed(r))
    return streamedWork(r,
                        bytesOf(double(r.constant("n")) * r.constant("k"),
                                *r.dtype("b")),
                        0);
  return gemmWork(r.constant("m"), r.constant("n"), r.constant("k"),
                  *r.dtype("a"), *r.dtype("b"), *r.dtype("c"),
                  r.constant("beta") != 0);
}

static Work panelMatmulWork(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const bool transpose = r.constant("transpose_w");
  const qlora_dtype compute = *r.dtype("a");
  const double weights = double(rows) * columns;
  const double decodes = decodedNumbers(weights, *r.dtype("w"));
  if (plans::isStreamed(r))
    return streamedWork(r, storedBytes(r), decodes);
  Work work = gemmWork(r.constant("m"), transpose ? rows : columns,
                       transpose ? columns : rows, compute, compute,
                       *r.dtype("c"), r.constant("beta") != 0);
  std::swap(work.f32Flops, work.panelF32Flops);
  std::swap(work.bf16Flops, work.panelBf16Flops);
  // W is read from memory as stored; decoded values stay in cache.
  work.bytes += storedBytes(r) - bytesOf(weights, compute);
  // No traffic overlaps with arithmetic. Traffic of a and c counts twice,
  // except its first kCacheBytes (measured: bench/decode.py).
  const double stored = storedBytes(r), streamed = work.bytes - stored;
  work.waitedBytes = stored + 2 * streamed - std::min(streamed, kCacheBytes);
  work.bytes = work.waitedBytes;
  work.decodedNumbers = decodes;
  return work;
}

/// Work of int8_matmul. Integer arithmetic on a CPU is about as fast as f32; a
/// is rounded in a pass before the matmul.
static Work int8MatmulWork(const KernelRequest &r) {
  const int64_t m = r.constant("m"), rows = r.constant("rows"),
                columns = r.constant("columns");
  const qlora_dtype type = *r.dtype("a");
  Work work = gemmWork(m, rows, columns, QLORA_DTYPE_F32, QLORA_DTYPE_F32,
                       *r.dtype("c"), r.constant("beta") != 0);
  std::swap(work.f32Flops, work.panelF32Flops);
  work.bytes = storedBytes(r) + bytesOf(double(m) * columns, type) +
               bytesOf(double(m) * rows, *r.dtype("c"));
  work.waitedBytes = work.bytes;
  work += rowWork(bytesOf(double(m) * columns, type), 0);
  return work;
}

/// Returns the expected number of rows that are in any group.
static int64_t groupedRows(const KernelRequest &r) {
  return (r.constant("m") + r.constant("shared") - 1) / r.constant("shared");
}

/// Work of grouped_matmul if each group has rows and decodes its weight once.
static Work groupedMatmulWork(const KernelRequest &r) {
  const std::vector<OperandShape> shapes = r.op->shapes(r).each;
  const qlora_dtype compute = *r.dtype("a");
  const int64_t rows = groupedRows(r);
  Work work = gemmWork(rows, shapes[3].columns, shapes[0].columns, compute,
                       compute, *r.dtype("c"), r.constant("beta") != 0);
  std::swap(work.f32Flops, work.panelF32Flops);
  std::swap(work.bf16Flops, work.panelBf16Flops);
  const double weights = double(r.constant("rows")) * r.constant("columns");
  // All rows of c are written: rows in no group are cleared.
  work.bytes = storedBytes(r) +
               bytesOf(double(rows) * shapes[0].columns +
                           double(r.constant("m")) * shapes[3].columns,
                       compute);
  work.waitedBytes = work.bytes;
  work.decodedNumbers = decodedNumbers(weights, *r.dtype("w"));
  return work;
}

static Work groupedWeightGradWork(const KernelRequest &r) {
  return gemmWork(r.constant("rows"), r.constant("columns"), groupedRows(r),
                  *r.dtype("dy"), *r.dtype("x"), QLORA_DTYPE_F32,
                  r.constant("beta") != 0);
}

/// Work of one pass over all operands, read or written according to the marks.
static Work walkWork(const KernelRequest &r) {
  const std::vector<OperandShape> shapes = r.op->shapes(r).each;
  double bytes = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const KernelOperand &operand = r.op->operands[i];
    if (!r.dtypes[i])
      continue;
    const double elements = double(shapes[i].rows) * shapes[i].columns;
    bytes += (operand.isRead + operand.isWritten) *
             (storedFormat(r.type(operand.name))
                  ? storedBytes(r)
                  : bytesOf(elements, r.type(operand.name)));
  }
  return rowWork(bytes, 0);
}

static Work decodeWork(const KernelRequest &r) {
  Work work = walkWork(r);
  work.decodedNumbers = decodedNumbers(
      double(r.constant("rows")) * r.constant("columns"), *r.dtype("w"));
  return work;
}

/// Work of a decode, plus a dot product of length `rank` for each element of w.
static Work adaptedNormWork(const KernelRequest &r) {
  Work work = decodeWork(r);
  const double products = double(r.constant("rows")) * r.constant("columns") *
                          r.constant("rank");
  work.f32Flops = 2 * products;
  work.laneInstructions += products;
  return work;
}

static Work attentionWork(const KernelRequest &r) {
  return attentionWork({r.constant("batch"), r.constant("length"),
                        r.constant("heads"), r.constant("kv_heads"),
                        r.constant("dim"), r.constant("window")},
                       *r.dtype("q"), r.op->name == "attention_grad");
}

/// Returns the bytes of heads of `dim` elements in a cache.
static double cacheBytes(double heads, double dim, qlora_dtype dtype) {
  return bytesOf(heads * dim, dtype) +
         (dtype == QLORA_DTYPE_I8 ? heads * kCacheScaleBytes : 0);
}

/// Work of cached_attention if every slot is half full, which is the mean over
/// a long generation.
static Work cachedAttentionWork(const KernelRequest &r) {
  const double entries = double(r.constant("entries")), dim = r.constant("dim");
  const double tokens = double(r.constant("batch")) * r.constant("length");
  const double keys = r.constant("window") > 0
                          ? std::min(entries, double(r.constant("window")))
                          : entries / 2;
  const double pairs = tokens * r.constant("heads") * keys;
  Work work;
  work.attentionF32Flops = 4 * dim * pairs;
  work.transcendentals = pairs;
  work.bytes = cacheBytes(2 * r.constant("batch") * keys *
                              r.constant("kv_heads"),
                          dim, *r.dtype("keys")) +
               bytesOf(2 * tokens * r.constant("heads") * dim, *r.dtype("q"));
  work.launches = 1;
  return work;
}

/// Work of cache_rows: the rows are read, and written to the cache.
static Work cacheRowsWork(const KernelRequest &r) {
  const double rows = double(r.constant("rows")), heads = r.constant("heads");
  const double columns = r.constant("columns");
  return rowWork(bytesOf(rows * columns, *r.dtype("x")) +
                     cacheBytes(rows * heads, columns / heads,
                                *r.dtype("cache")),
                 0);
}

/// Work of adapter_matmul if as many rows as possible have different adapters.
static Work adapterMatmulWork(const KernelRequest &r) {
  const int64_t m = r.constant("m"), n = r.constant("n"), k = r.constant("k");
  Work work = gemmWork(m, n, k, *r.dtype("x"), QLORA_DTYPE_F32, *r.dtype("y"),
                       r.constantAsDouble("beta") != 0);
  const double others = double(std::min(m, r.constant("adapters")) - 1);
  work.bytes += bytesOf(others * double(n) * double(k), QLORA_DTYPE_F32);
  work.packedBytes = 0;
  return work;
}

/// Work of the LM head if every row has a label; the number of labels is not
/// known at compile time. Logits stay in cache, and each block of rows reads
/// the weight. The weight gradient needs another pass with recomputed logits.
static Work headWork(const KernelRequest &r) {
  const bool hasGradient = plans::hasHeadGradient(r);
  const int64_t rows = r.constant("rows"), hidden = r.constant("hidden_size"),
                vocab = plans::headWords(r);
  const qlora_dtype type = *r.dtype("hidden"), weightType = *r.dtype("w");
  const bool trains = plans::hasHeadWeightGradient(r);
  // On CPUs, the mean of capped logits has a gradient of its own.
  const bool isSmooth = hasGradient && r.constantAsDouble("smoothing") != 0 &&
                        r.constantAsDouble("cap") != 0;
  Work work;
  for (int i = 0; i < (trains ? 4 : hasGradient ? 2 : 1) + isSmooth; ++i)
    work += gemmWork(rows, vocab, hidden, type, weightType, QLORA_DTYPE_F32,
                     false);
  const int64_t blocks =
      (rows + plans::kHeadBlockRows - 1) / plans::kHeadBlockRows;
  const double words = double(vocab) * hidden;
  work.bytes = bytesOf(words * double(blocks + trains), weightType) +
               bytesOf(double(rows) * hidden * (hasGradient ? 2 : 1), type) +
               (trains ? bytesOf(2 * words, QLORA_DTYPE_F32) : 0);
  work.transcendentals = double(rows) * vocab * (trains ? 2 : 1);
  return work;
}

/// Work of head_merge: reads all states, and reads and rewrites the gradient.
/// The rows of w for the rank's own targets are few and not counted.
static Work headMergeWork(const KernelRequest &r) {
  const double states = double(r.constant("shards")) * r.constant("rows");
  double bytes =
      states *
      double(plans::headStateNumbers(r.constantAsDouble("smoothing"))) * 4;
  if (r.dtype("gradient")) {
    const double numbers = double(r.constant("rows")) *
                           r.constant("hidden_size");
    bytes += bytesOf(numbers, QLORA_DTYPE_F32) +
             bytesOf(numbers, r.type("dhidden"));
    if (r.constantAsDouble("smoothing") != 0) // sums the rows of w
      bytes += bytesOf(double(r.constant("piece")) * r.constant("hidden_size"),
                       r.type("w"));
  }
  return rowWork(bytes, states);
}

/// Returns the bytes of [rows, columns] elements of an operand's type.
static double walkedBytes(const KernelRequest &r, std::string_view operand) {
  return bytesOf(double(r.constant("rows")) * r.constant("columns"),
                 *r.dtype(operand));
}

/// Work of embedding ops, which read or write rows of a table.
static Work embeddingWork(const KernelRequest &r) {
  return rowWork(2 * walkedBytes(r, "w"), 0);
}

static Work embeddingGradWork(const KernelRequest &r) {
  return rowWork(walkedBytes(r, "dout") + 2 * walkedBytes(r, "dw"), 0);
}

namespace {
struct KernelWorkRow {
  WorkCategory category;
  Work (*work)(const KernelRequest &);
};
} // namespace

/// In the order of kernelOps().
static constexpr KernelWorkRow kRows[] = {
#define QLORA_KERNEL_OP(Op, Operands, Constants, Category, Work)               \
  {WorkCategory::Category, Work},
#include "runtime/Kernels/Kernels.def"
};

static const KernelWorkRow &rowOf(const KernelOp &op) {
  return kRows[&op - kernelOps().data()];
}

Work qlora::kernelWork(const KernelRequest &request) {
  return rowOf(*request.op).work(request);
}

double qlora::neededFlops(const KernelRequest &request) {
  const Work work = kernelWork(request);
  return work.gemmFlops() + work.attentionFlops();
}

WorkCategory qlora::categoryOf(const KernelOp &op) {
  return rowOf(op).category;
}
