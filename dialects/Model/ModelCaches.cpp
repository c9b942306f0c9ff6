// SPDX-License-Identifier: MIT

// Ops of generation: verifiers, kernel calls and memory (ModelCacheOps.td).

#include "dialects/Model/Model.h"

#include "runtime/Kernels/Math/CacheInt8.h"

using namespace mlir;
using namespace qlora::model;

//===----------------------------------------------------------------------===//
// Verifiers
//===----------------------------------------------------------------------===//

/// Returns whether `value` is i32 [B, T] with the first dimensions of `tokens`.
static bool isPerToken(Value value, Value tokens) {
  RankedTensorType type = tensorOf(value), of = tensorOf(tokens);
  return of.getRank() == 3 && type.getElementType().isInteger(32) &&
         type.getShape() == of.getShape().drop_back();
}

/// Returns the heads of a cache's row of `columns` elements that have scales,
/// or 1 for a cache without scales.
static int64_t scaledHeads(RankedTensorType cache, int64_t columns) {
  const bool isInt8 = cache.getElementType().isInteger(8);
  return isInt8 ? (cache.getShape().back() - columns) / kCacheScaleBytes : 1;
}

/// Returns the columns of a cache for `heads` heads of `dim` elements.
static int64_t columnsFor(RankedTensorType cache, int64_t heads, int64_t dim) {
  const bool isInt8 = cache.getElementType().isInteger(8);
  return isInt8 ? int8CacheColumns(heads * dim, heads) : heads * dim;
}

LogicalResult CacheOp::verify() {
  RankedTensorType type = getTensorType();
  Type element = type.getElementType();
  if (type.getRank() != 3 || !type.hasStaticShape() ||
      !(element.isF32() || element.isBF16() || element.isF16() ||
        element.isInteger(8)))
    return emitOpError("(C1) expects [slots, entries, C] in f32, bf16, f16 or "
                       "i8, but got ")
           << type;
  return success();
}

LogicalResult CacheRowsOp::verify() {
  RankedTensorType cache = tensorOf(getResult());
  const bool isInt8 = cache.getElementType().isInteger(8);
  if (cache.getRank() != 3 || tensorOf(getX()).getRank() != 3 ||
      (!isInt8 && columnsOf(getX()) != columnsOf(getResult())))
    return emitOpError("(C1) expects x [B, T, C] for a cache [S, E, C], but "
                       "got ")
           << getX().getType() << " and " << cache;
  for (Value value : {getSlots(), getPositions(), getSegments()})
    if (!isPerToken(value, getX()))
      return emitOpError("(C2) expects slots, positions and segments of type "
                         "[B, T] i32, but got ")
             << value.getType();
  const int64_t columns = columnsOf(getX());
  const int64_t heads = scaledHeads(cache, columns);
  if (isInt8 && (heads < 1 || columns % heads || columns / heads % 4 ||
                 columnsFor(cache, heads, columns / heads) !=
                     columnsOf(getResult())))
    return emitOpError("(C4) expects an i8 cache for ")
           << columns << " elements and the scales of heads of a multiple of 4 "
           << "elements, but got " << cache;
  return success();
}

LogicalResult CacheRowsOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto cache =
      symbols.lookupNearestSymbolFrom<CacheOp>(*this, getCacheAttr());
  if (!cache || cache.getType() != getResult().getType())
    return emitOpError("(C3) expects a cache of type ")
           << getResult().getType() << ", but got " << getCacheAttr();
  return success();
}

/// Checks what (C1), (C2) and (C7) say about sizes.
static LogicalResult verifySizes(CachedAttentionOp op) {
  const int64_t heads = op.getHeads(), kvHeads = op.getKvHeads(),
                dim = op.getHeadDim();
  if (kvHeads <= 0 || heads <= 0 || dim <= 0 || heads % kvHeads)
    return op.emitOpError("(C1) expects heads to be a multiple of kv_heads, "
                          "but got ")
           << heads << " and " << kvHeads << ", of " << dim;
  RankedTensorType keys = tensorOf(op.getKeys());
  if (keys.getRank() != 3 || tensorOf(op.getQ()).getRank() != 3 ||
      columnsOf(op.getQ()) != heads * dim ||
      columnsOf(op.getKeys()) != columnsFor(keys, kvHeads, dim) ||
      op.getResult().getType() != op.getQ().getType())
    return op.emitOpError("(C2) expects widths of ")
           << heads << " and " << kvHeads << " heads of " << dim
           << " and a result of q's type";
  const int64_t window = op.getWindow();
  if (keys.getDimSize(1) < window + tensorOf(op.getQ()).getDimSize(1) - 1)
    return op.emitOpError("(C7) expects entries for a window of ")
           << window << " and the new tokens, but got " << keys.getDimSize(1);
  return success();
}

LogicalResult CachedAttentionOp::verify() {
  if (static_cast<int64_t>(getWindow()) < 0 || !getCap().isFinite() ||
      getCap().isNegative())
    return emitOpError("(C5) expects a window of at least 0 and a finite cap "
                       "of at least 0");
  if (failed(verifySizes(*this)))
    return failure();
  for (Value value : {getSlots(), getPositions(), getSegments()})
    if (!isPerToken(value, getQ()))
      return emitOpError("(C3) expects slots, positions and segments of type "
                         "[B, T] i32, but got ")
             << value.getType();
  if (getValues().getType() != getKeys().getType())
    return emitOpError("(C4) expects values of the keys' type, but got ")
           << getValues().getType() << " and " << getKeys().getType();
  if (Value sinks = getSinks())
    if (sinks.getType() !=
        RankedTensorType::get({int64_t(getHeads())},
                              Float32Type::get(getContext())))
      return emitOpError("(C6) expects sinks of type f32 [")
             << getHeads() << "], but got " << sinks.getType();
  return success();
}

LogicalResult PickTokensOp::verify() {
  RankedTensorType x = tensorOf(getX()), tokens = tensorOf(getTokens());
  if (x.getRank() != 3 || tokens.getRank() != 1 ||
      !tokens.getElementType().isInteger(32) ||
      tokens.getDimSize(0) != x.getDimSize(0) ||
      getResult().getType() != withLength(x, 1, 1))
    return emitOpError("(C1) expects tokens i32 [B] and a result [B, 1, C] for "
                       "x [B, T, C], but got ")
           << tokens << " and " << getResult().getType() << " for " << x;
  return success();
}

LogicalResult AdapterLinearOp::verify() {
  RankedTensorType x = tensorOf(getX()), weight = tensorOf(getWeight()),
                   y = tensorOf(getResult());
  if (weight.getRank() != 3 || !weight.getElementType().isF32() ||
      x.getRank() != 3 || weight.getDimSize(2) != columnsOf(getX()))
    return emitOpError("(C1) expects a weight f32 [out, N, in] for x [B, T, "
                       "in], but got ")
           << weight << " for " << x;
  if (y.getRank() != 3 || y.getDimSize(2) != weight.getDimSize(0) ||
      y.getShape().drop_back() != x.getShape().drop_back())
    return emitOpError("(C2) expects a result [B, T, out], but got ")
           << y << " for " << x << " and " << weight;
  if (getInit() && getInit().getType() != y)
    return emitOpError("(C3) expects init of type ") << y;
  if (!isPerToken(getAdapters(), getX()))
    return emitOpError("(C4) expects adapters of type [B, T] i32, but got ")
           << getAdapters().getType();
  return success();
}

//===----------------------------------------------------------------------===//
// Kernel calls
//===----------------------------------------------------------------------===//

KernelCall CacheRowsOp::getKernelCall() {
  RankedTensorType x = tensorOf(getX()), cache = tensorOf(getResult());
  return {"cache_rows",
          {{"x", getX()}, {"slots", getSlots()}, {"positions", getPositions()},
           {"segments", getSegments()}, {"cache", getResult()}},
          {{"rows", matrixRows(x)}, {"columns", matrixColumns(x)},
           {"slots", cache.getDimSize(0)}, {"entries", cache.getDimSize(1)},
           {"heads", scaledHeads(cache, matrixColumns(x))}}};
}

KernelCall CachedAttentionOp::getKernelCall() {
  RankedTensorType q = tensorOf(getQ()), keys = tensorOf(getKeys());
  return {"cached_attention",
          {{"q", getQ()}, {"keys", getKeys()}, {"values", getValues()},
           {"slots", getSlots()}, {"positions", getPositions()},
           {"segments", getSegments()}, {"out", getResult()},
           {"sinks", getSinks()}},
          {{"batch", q.getDimSize(0)}, {"length", q.getDimSize(1)},
           {"slots", keys.getDimSize(0)}, {"entries", keys.getDimSize(1)},
           {"heads", getHeads()}, {"kv_heads", getKvHeads()},
           {"dim", getHeadDim()}, {"window", getWindow()},
           {"scale", getScale()}, {"cap", getCap()}}};
}

/// Picking a token is a lookup in a table of all tokens.
KernelCall PickTokensOp::getKernelCall() {
  RankedTensorType x = tensorOf(getX());
  return {"embedding",
          {{"ids", getTokens()}, {"w", getX()}, {"out", getResult()}},
          {{"rows", x.getDimSize(0)}, {"columns", matrixColumns(x)},
           {"vocab", matrixRows(x)}, {"turned", false}, {"piece", 0}}};
}

KernelCall AdapterLinearOp::getKernelCall() {
  RankedTensorType weight = tensorOf(getWeight());
  return {"adapter_matmul",
          {{"x", getX()}, {"w", getWeight()}, {"adapter", getAdapters()},
           {"y", getResult()}},
          {{"m", matrixRows(tensorOf(getX()))}, {"n", weight.getDimSize(0)},
           {"k", weight.getDimSize(2)}, {"adapters", weight.getDimSize(1)},
           {"beta", 0.0}}};
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

std::optional<OutsideMemory> CacheRowsOp::getOutsideMemory() {
  return OutsideMemory{MemorySpace::Cache, getCacheAttr()};
}

SmallVector<MemoryStore> CacheRowsOp::getMemoryStores() {
  return {{OutsideMemory{MemorySpace::Cache, getCacheAttr()}}};
}
