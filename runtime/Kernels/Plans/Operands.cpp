// SPDX-License-Identifier: MIT

// The shapes of every op's operands, and what else an op asks of a request.

#include "runtime/Kernels/Math/NF4.h"
#include "runtime/Kernels/Plans/Plans.h"

namespace qlora::plans {

static int64_t dividedUp(int64_t count, int64_t each) {
  return count / each + (count % each != 0);
}

// Matrix products -------------------------------------------------------------

OperandShapes matmul::shapes(const KernelRequest &r) {
  const int64_t m = r.constant("m"), n = r.constant("n"), k = r.constant("k");
  const bool ta = r.constant("transpose_a"), tb = r.constant("transpose_b");
  return {{ta ? k : m, ta ? m : k, "lda"},
          {tb ? n : k, tb ? k : n, "ldb"},
          {m, n, "ldc"}};
}

/// What NF4Layout can describe.
static Reason needBlock(const KernelRequest &r) {
  const int64_t block = r.constant("block");
  if (block < 16 || block > 65536 || (block & (block - 1)) != 0)
    return refusalOf(r, "block", "be a power of two in [16, 65536]");
  return std::nullopt;
}

/// The constants of a weight that is NF4.
static Reason needNF4(const KernelRequest &r) {
  if (r.type("w") != QLORA_DTYPE_NF4)
    return std::nullopt;
  if (Reason reason = needBlock(r))
    return reason;
  const int64_t isDouble = r.constant("double_quant");
  if (isDouble != 0 && isDouble != 1)
    return refusalOf(r, "double_quant", "be 0 or 1");
  return std::nullopt;
}

OperandShapes panel_matmul::shapes(const KernelRequest &r) {
  if (Reason reason = needNF4(r))
    return *reason;
  const int64_t m = r.constant("m");
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  const bool isForward = r.constant("transpose_w");
  return {{m, isForward ? columns : rows, "lda"},
          {rows, columns},
          {m, isForward ? rows : columns, "ldc"}};
}

OperandShapes decode::shapes(const KernelRequest &r) {
  if (Reason reason = needNF4(r))
    return *reason;
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  return {{rows, columns}, {rows, columns}};
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
          {1, dividedUp(blocks, kNF4NestedBlock)},
          {1, 1}};
}

// Attention -------------------------------------------------------------------

/// Extents small enough that products of two stay far from overflow.
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
  return std::nullopt;
}

/// Of q, k, v, segments, out and lse.
OperandShapes attention::shapes(const KernelRequest &r) {
  if (Reason reason = needExtents(r))
    return *reason;
  const int64_t batch = r.constant("batch"), length = r.constant("length");
  const int64_t heads = r.constant("heads"), dim = r.constant("dim");
  const int64_t tokens = batch * length;
  const int64_t queries = heads * dim, keys = r.constant("kv_heads") * dim;
  return {{tokens, queries, "ldq"}, {tokens, keys, "ldk"},
          {tokens, keys, "ldv"},    {batch, length},
          {tokens, queries, "ldo"}, {batch * heads, length}};
}

OperandShapes attention_grad::shapes(const KernelRequest &r) {
  OperandShapes shapes = attention::shapes(r);
  if (shapes.refusal)
    return shapes;
  const OperandShape q = shapes.each[0], k = shapes.each[1];
  for (const OperandShape &gradient : {OperandShape{q.rows, q.columns, "lddo"},
                                       {q.rows, q.columns, "lddq"},
                                       {k.rows, k.columns, "lddk"},
                                       {k.rows, k.columns, "lddv"}})
    shapes.each.push_back(gradient);
  return shapes;
}

// Head and loss ---------------------------------------------------------------

OperandShapes head_loss::shapes(const KernelRequest &r) {
  // Row numbers and words are i32.
  for (std::string_view name : {"rows", "vocab"})
    if (r.constant(name) > int64_t(1) << 31)
      return refusalOf(r, name, "be at most 2^31");
  const int64_t rows = r.constant("rows"), hidden = r.constant("hidden_size");
  return {{rows, hidden, "ldh"},
          {r.constant("vocab"), hidden},
          {1, rows},
          {1, 1},
          {1, 1},
          {1, rows}};
}

OperandShapes head_loss_grad::shapes(const KernelRequest &r) {
  OperandShapes shapes = head_loss::shapes(r);
  if (shapes.refusal)
    return shapes;
  const OperandShape hidden = shapes.each[0], w = shapes.each[1];
  shapes.each.push_back({hidden.rows, hidden.columns, "lddh"});
  shapes.each.push_back(w);
  return shapes;
}

// Walks over rows -------------------------------------------------------------

OperandShapes embedding::shapes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  return {{1, rows}, {r.constant("vocab"), columns}, {rows, columns, "ldo"}};
}

OperandShapes embedding_grad::shapes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  return {{1, rows}, {rows, columns, "lddo"}, {r.constant("vocab"), columns}};
}

OperandShapes column_sum::shapes(const KernelRequest &r) {
  const int64_t columns = r.constant("columns");
  return {{r.constant("rows"), columns, "ldx"}, {1, columns}};
}

OperandShapes accumulate::shapes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  return {{rows, columns, "ldx"}, {rows, columns, "ldy"}};
}

OperandShapes copy_rows::shapes(const KernelRequest &r) {
  const int64_t rows = r.constant("rows"), columns = r.constant("columns");
  return {{rows, columns, "ldx"}, {rows, columns, "ldo"}};
}

OperandShapes clip_norm::shapes(const KernelRequest &r) {
  const int64_t elements = r.constant("elements"), skip = r.constant("skip");
  // The label count is element 1, and `skip` leaves an end of the range.
  if (elements < 2)
    return refusalOf(r, "elements", "be at least 2");
  if (skip < 0 || skip > elements)
    return refusalOf(r, "skip", "be in [0, elements]");
  return {{1, elements}, {1, 1}, {1, 1}};
}

} // namespace qlora::plans
