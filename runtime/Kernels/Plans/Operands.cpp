// SPDX-License-Identifier: MIT

// The shapes of operands, and further limits of an op. OperandChecks.cpp checks
// requests by them.

#include "runtime/Kernels/Math/CacheInt8.h"
#include "runtime/Kernels/Math/Int8Matmul.h"
#include "runtime/Kernels/Math/NF4Quantize.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Kernels/Plans/Plans.h"

#include <algorithm>
#include <cmath>

namespace qlora::plans {

// Matmuls ---------------------------------------------------------------------

OperandShapes matmul::shapes(const KernelRequest &r) {
  const int64_t m = r.constant("m"), n = r.constant("n"), k = r.constant("k");
  const bool ta = r.constant("transpose_a"), tb = r.constant("transpose_b");
  return {{ta ? k : m, ta ? m : k},
          {tb ? n : k, tb ? k : n},
          {m, n}};
}

/// Checks the constant `block` for StoredLayout. `rowBlock` is the number of
/// elements in a row if a row may be a block, else 0.
static Reason needBlock(const KernelRequest &r, int64_t rowBlock = 0) {
  const int64_t block = r.constant("block");
  if (rowBlock && block == rowBlock)
    return std::nullopt;
  if (block < 16 || block > 65536 || (block & (block - 1)) != 0)
    return refusalOf(r, "block", "be a power of two in [16, 65536]");
  return std::nullopt;
}

Reason needStored(const KernelRequest &r) {
  const StoredFormat *format = storedFormat(r.type("w"));
  if (!format)
    return std::nullopt;
  if (Reason reason =
          needBlock(r, format->takesRows ? r.constant("columns") : 0))
    return reason;
  const int64_t isDouble = r.constant("double_quant");
  if (isDouble != 0 && isDouble != 1)
    return refusalOf(r, "double_quant", "be 0 or 1");
  if (!format->takesDoubleQuant(isDouble))
    return refusalOf(r, "double_quant", isDouble ? "be 0" : "be 1");
  return std::nullopt;
}

OperandShapes panel_matmul::shapes(const KernelRequest &r) {
  if (Reason reason = needStored(r))
    return *reason;
  const int64_t m = r.constant("m");
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const bool isForward = r.constant("transpose_w");
  return {{m, isForward ? columns : rows},
          {rows, columns},
          {m, isForward ? rows : columns}};
}

/// Requires that a row is one block, and a depth of at most 2^17, so that sums
/// of products of codes fit i32.
OperandShapes int8_matmul::shapes(const KernelRequest &r) {
  if (Reason reason = needStored(r))
    return *reason;
  const int64_t m = r.constant("m");
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  if (columns > kMostInt8Depth)
    return refusalOf(r, "columns", "be at most 131072");
  if (r.constant("block") != columns)
    return refusalOf(r, "block", "be the columns");
  const double threshold = r.constantAsDouble("threshold");
  if (!(threshold >= 0) || std::isinf(threshold))
    return std::string("threshold must be neither negative nor infinite");
  return {{m, columns}, {rows, columns}, {m, rows}};
}

OperandShapes decode::shapes(const KernelRequest &r) {
  if (Reason reason = needStored(r))
    return *reason;
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  return {{rows, columns}, {rows, columns}};
}

OperandShapes adapted_norm::shapes(const KernelRequest &r) {
  if (Reason reason = needStored(r))
    return *reason;
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const int64_t rank = r.constant("rank");
  const auto [out, in] = r.constant("turned") ? std::pair(columns, rows)
                                              : std::pair(rows, columns);
  return {{rows, columns}, {rank, in}, {out, rank}, {1, out}};
}

OperandShapes quantize::shapes(const KernelRequest &r) {
  if (Reason reason = needBlock(r))
    return *reason;
  const int64_t elements = r.constant("elements");
  return {{1, elements},
          {1, dividedUp(elements, 2)},
          {1, dividedUp(elements, r.constant("block"))}};
}

OperandShapes quantize_scales::shapes(const KernelRequest &r) {
  const int64_t blocks = r.constant("blocks");
  return {{1, blocks},
          {1, 256},
          {1, blocks},
          {1, dividedUp(blocks, kNestedRun)},
          {1, 1}};
}

// Attention -------------------------------------------------------------------

Reason needCap(const KernelRequest &r) {
  const double cap = r.constantAsDouble("cap");
  if (cap >= 0 && std::isfinite(cap))
    return std::nullopt;
  return "cap must be finite and not negative, got " + std::to_string(cap);
}

/// Limits extents so that the product of two extents cannot overflow.
static Reason needExtents(const KernelRequest &r) {
  for (std::string_view name : {"batch", "length", "heads", "kv_heads", "dim"})
    if (r.constant(name) > int64_t(1) << 24)
      return refusalOf(r, name, "be at most 2^24");
  if (r.constant("heads") % r.constant("kv_heads") != 0)
    return "heads must be a multiple of kv_heads, got " +
           std::to_string(r.constant("heads")) + " and " +
           std::to_string(r.constant("kv_heads"));
  if (r.constant("window") < 0)
    return refusalOf(r, "window", "not be negative");
  return needCap(r);
}

/// Shapes of q, k, v, segments, out and lse.
static OperandShapes attentionShapes(const KernelRequest &r) {
  if (Reason reason = needExtents(r))
    return *reason;
  const int64_t batch = r.constant("batch"), length = r.constant("length");
  const int64_t heads = r.constant("heads"), dim = r.constant("dim");
  const int64_t tokens = batch * length;
  const int64_t queries = heads * dim, keys = r.constant("kv_heads") * dim;
  return {{tokens, queries}, {tokens, keys},
          {tokens, keys},    {batch, length},
          {tokens, queries}, {batch * heads, length}};
}

OperandShapes attention::shapes(const KernelRequest &r) {
  OperandShapes shapes = attentionShapes(r);
  if (!shapes.refusal)
    shapes.each.push_back({1, r.constant("heads")}); // sinks
  return shapes;
}

OperandShapes attention_grad::shapes(const KernelRequest &r) {
  OperandShapes shapes = attentionShapes(r);
  if (shapes.refusal)
    return shapes;
  const OperandShape q = shapes.each[0], k = shapes.each[1];
  shapes.each.insert(shapes.each.end(), {q, q, k, k}); // dout, dq, dk, dv
  return shapes;
}

// Caches ----------------------------------------------------------------------

/// Returns the shape of a cache of `rows` rows with `heads` heads of `dim`, in
/// elements of its type. An i8 cache has the bytes of scales, too.
static OperandShape cacheShape(qlora_dtype cache, int64_t rows, int64_t heads,
                               int64_t dim) {
  return {rows, cache == QLORA_DTYPE_I8 ? int8CacheColumns(heads * dim, heads)
                                        : heads * dim};
}

/// Checks that the scales of an i8 cache are aligned.
static Reason needCacheDim(const KernelRequest &r, qlora_dtype cache,
                           int64_t dim) {
  if (cache != QLORA_DTYPE_I8 || dim % kCacheScaleBytes == 0)
    return std::nullopt;
  return r.op->name + " needs heads of a multiple of 4 dimensions for an i8 " +
         "cache, got " + std::to_string(dim);
}

OperandShapes cache_rows::shapes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const int64_t slots = r.constant("slots"), entries = r.constant("entries");
  const int64_t heads = r.constant("heads");
  if (slots > kMaxExtent / entries)
    return refusalOf(r, "slots", "be few enough for an address space");
  if (columns % heads != 0)
    return refusalOf(r, "heads", "divide the columns");
  if (Reason reason = needCacheDim(r, r.type("cache"), columns / heads))
    return *reason;
  return {{rows, columns},
          {1, rows},
          {1, rows},
          {1, rows},
          cacheShape(r.type("cache"), slots * entries, heads,
                     columns / heads)};
}

OperandShapes cached_attention::shapes(const KernelRequest &r) {
  if (Reason reason = needExtents(r))
    return *reason;
  for (std::string_view name : {"slots", "entries"})
    if (r.constant(name) > int64_t(1) << 24)
      return refusalOf(r, name, "be at most 2^24");
  const int64_t length = r.constant("length"), window = r.constant("window");
  if (r.constant("entries") < window + length - 1)
    return refusalOf(r, "entries", "hold a window and the new tokens");
  const int64_t tokens = r.constant("batch") * length;
  const int64_t queries = r.constant("heads") * r.constant("dim");
  if (Reason reason = needCacheDim(r, r.type("keys"), r.constant("dim")))
    return *reason;
  const OperandShape cache =
      cacheShape(r.type("keys"), r.constant("slots") * r.constant("entries"),
                 r.constant("kv_heads"), r.constant("dim"));
  return {{tokens, queries}, cache,
          cache,                    {1, tokens},
          {1, tokens},              {1, tokens},
          {tokens, queries}, {1, r.constant("heads")}};
}

OperandShapes adapter_matmul::shapes(const KernelRequest &r) {
  const int64_t m = r.constant("m"), n = r.constant("n"), k = r.constant("k");
  const int64_t adapters = r.constant("adapters");
  if (adapters > kMaxExtent / n)
    return refusalOf(r, "adapters", "be few enough for an address space");
  return {{m, k}, {n * adapters, k}, {1, m}, {m, n}};
}

// Walks over rows -------------------------------------------------------------

/// Shape of an embedding's table with the vectors of `ids` token ids.
static OperandShape tableShape(const KernelRequest &r, int64_t ids) {
  const int64_t columns = r.constant("columns");
  return r.constant("turned") ? OperandShape{columns, ids}
                              : OperandShape{ids, columns};
}

OperandShapes embedding::shapes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  if (r.constant("piece") < 0 || r.constant("piece") > kMaxExtent)
    return refusalOf(r, "piece", "be in [0, 2^40]");
  return {{1, rows}, tableShape(r, tableIds(r)), {rows, columns}};
}

OperandShapes embedding_grad::shapes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  return {
      {1, rows}, {rows, columns}, tableShape(r, r.constant("vocab"))};
}

OperandShapes column_sum::shapes(const KernelRequest &r) {
  const int64_t columns = r.constant("columns");
  return {{r.constant("rows"), columns}, {1, columns}};
}

OperandShapes accumulate::shapes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  return {{rows, columns}, {rows, columns}};
}

OperandShapes copy_rows::shapes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  return {{rows, columns}, {rows, columns}};
}

/// Requires that out has as many elements as x. Counts that overflow saturate,
/// and so compare as equal, but no memory could hold such operands.
OperandShapes swap_blocks::shapes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const int64_t run = r.constant("run");
  if (columns % run && run % columns)
    return refusalOf(r, "run", "divide the columns or be a multiple of them");
  const Size has = Size(rows) * Size(columns);
  const Size is =
      Size(r.constant("first")) * Size(r.constant("second")) * Size(run);
  if (is.bytes() != has.bytes())
    return "first * second * run must be rows * columns, " +
           std::to_string(has.bytes()) + ", got " + std::to_string(is.bytes());
  return {{rows, columns}, {rows, columns}};
}

OperandShapes clip_norm::shapes(const KernelRequest &r) {
  const int64_t elements = r.constant("elements"), skip = r.constant("skip");
  // The label count is element 1. The norm is over [skip, elements).
  if (elements < 2)
    return refusalOf(r, "elements", "be at least 2");
  if (skip < 0 || skip > elements)
    return refusalOf(r, "skip", "be in [0, elements]");
  const int64_t others = r.constant("others");
  if (others < 0 || others > kMaxExtent)
    return refusalOf(r, "others", "be a number of ranks, or 0");
  return {{1, elements}, {1, std::max<int64_t>(others, 1)}, {1, 1}, {1, 1}};
}

OperandShapes length::shapes(const KernelRequest &r) {
  return {{1, r.constant("elements")}, {1, 1}};
}

OperandShapes adamw_8bit::shapes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const int64_t blocks = rows > kMaxExtent / columns
                             ? kMaxExtent
                             : dividedUp(rows * columns, kStateBlock);
  return {{rows, columns}, {rows, columns}, {rows, columns}, {1, blocks},
          {1, blocks},     {rows, columns}, {1, 1}};
}

} // namespace qlora::plans
