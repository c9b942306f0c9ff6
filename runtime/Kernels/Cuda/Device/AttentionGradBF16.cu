// SPDX-License-Identifier: MIT

// attention_grad in bf16: blocks of 64 keys for dK and dV, then blocks of 64
// queries for dQ. Scores and their gradients are recomputed from the operands
// and lse. A block's own rows are the left side of matmuls, so P and dS have
// the layout that the next matmul needs, and warps exchange nothing.
//
// With width 128, a block has 4 warps and 48 KiB of shared memory, and a thread
// has 128 registers for the sums of dK and dV; two blocks fit on a
// multiprocessor. With width 64, three blocks fit. Tiles of the right side have
// 32 rows; 64 rows would need 32 more registers for scores and their gradients.

#include "runtime/Kernels/Cuda/Device/AttentionWarps.cuh"

/// A pair of operands. kScores: q and k, whose dot products are the scores.
/// kSlopes: dout and v, whose dot products are the gradients of P.
enum GradientPair { kScores, kSlopes };

constexpr int kColumns = 32; ///< rows of the right side

template <int Width> struct GradientTiles {
  HalfTile<kTile, Width> left[2];
  HalfTile<kColumns, Width> right[2];
};

/// Replaces dot products by P and dS. dS is not yet multiplied by the scale.
template <bool AreRowsQueries>
QLORA_DEVICE void
differentiate(const AttentionShape &shape, const GradientRows &rows,
              const ScorePlace<kColumns, AreRowsQueries> &place,
              WarpSums<kColumns> &p, WarpSums<kColumns> &ds) {
  scaleAndHide(shape, place, p);
  QLORA_UNROLL
  for (int j = 0; j < WarpSums<kColumns>::kCount; ++j)
    QLORA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int query = place.query(j, i);
      const bool exists = place.isFull || query < shape.length;
      const float lse = exists ? rows.lse[query] : 0.0f;
      const float delta = exists ? rows.delta[query] : 0.0f;
      float &probable = p.tile[j].value[i];
      float &slope = ds.tile[j].value[i];
      slope -= delta;
      if (shape.cap != 0) { // the score is a base-2 exponent
        const float t = __fdividef(probable, shape.cap * kLog2E);
        slope -= slope * t * t;
      }
      probable = qlora_exp2(probable - lse * kLog2E);
      slope = probable == 0.0f ? 0.0f : probable * slope;
    }
}

/// Begins two groups of copies. The first group is both left sides and one
/// right side: q for a block of keys, v for a block of queries. The second
/// group is the other right side.
template <AttentionKind Kind, bool AreRowsQueries, int Width>
QLORA_DEVICE void stageBlock(GradientTiles<Width> &tiles,
                             const AttentionShape &shape,
                             const GradientRows &rows, int dimension) {
  constexpr GradientPair kFirst = AreRowsQueries ? kSlopes : kScores;
  constexpr GradientPair kSecond = AreRowsQueries ? kScores : kSlopes;
  const AttentionRows queries[2] = {rows.q, rows.dout};
  const AttentionRows keys[2] = {rows.k, rows.v};
  const auto &left = AreRowsQueries ? queries : keys;
  const auto &right = AreRowsQueries ? keys : queries;
  stage<Kind>(tiles.left[kScores], shape, left[kScores], dimension);
  stage<Kind>(tiles.left[kSlopes], shape, left[kSlopes], dimension);
  stage<Kind>(tiles.right[kFirst], shape, right[kFirst], dimension);
  qlora_commit_copies();
  stage<Kind>(tiles.right[kSecond], shape, right[kSecond], dimension);
  qlora_commit_copies();
}

// dK and dV ------------------------------------------------------------------

/// A block of keys, and the tiles of queries to process for each query head.
struct KeyBlock {
  AttentionPlace at;
  TileRange range;
  SegmentRange segments;
  int group; ///< query heads per key head
};

struct QueryTile {
  int member; ///< index in the group; `group` if there is no tile
  TileStep tile;
};

QLORA_DEVICE QueryTile nextQueries(const AttentionShape &shape,
                                   const KeyBlock &block, int member,
                                   int index) {
  const TileStep tile =
      nextTile<kColumns>(shape, block.segments, index, block.range.end);
  if (tile.index < block.range.end)
    return {member, tile};
  const TileStep first = nextTile<kColumns>(shape, block.segments,
                                            block.range.begin, block.range.end);
  const bool isEmpty = first.index == block.range.end;
  return {isEmpty ? block.group : member + 1, first};
}

QLORA_DEVICE GradientRows rowsOfTile(const qlora_cuda_args &args,
                                     const AttentionShape &shape,
                                     const KeyBlock &block,
                                     const QueryTile &queries) {
  return gradientRows(
      args, shape, block.at.batch, block.at.head * block.group + queries.member,
      block.at.head, queries.tile.index * kColumns, block.at.first);
}

/// Waits for a tile of queries and processes it; begins to copy the tile
/// `next`, if there is one. If a head is wider than Width, the block's own part
/// is staged last, because the matmuls for dK and dV use it.
template <AttentionKind Kind, int Width>
QLORA_DEVICE void addQueries(GradientTiles<Width> &tiles,
                             const qlora_cuda_args &args,
                             const AttentionShape &shape, const KeyBlock &block,
                             const QueryTile &queries, const QueryTile &next,
                             WarpSums<Width> &dk, WarpSums<Width> &dv) {
  const int parts = Kind == kFast ? 1 : (shape.dim + Width - 1) / Width;
  const bool staysAhead = Kind == kFast && next.member < block.group;
  WarpSums<kColumns> p = {}, ds = {};
  for (int step = 1; step <= parts; ++step) {
    if (Kind == kAny) {
      __syncthreads();
      stageBlock<Kind, false>(tiles, shape,
                              rowsOfTile(args, shape, block, queries),
                              (block.at.part + step) % parts * Width);
    }
    qlora_wait_copies<1>();
    __syncthreads();
    multiplyRows(tiles.left[kScores], tiles.right[kScores], p);
    qlora_wait_copies<0>();
    __syncthreads();
    multiplyRows(tiles.left[kSlopes], tiles.right[kSlopes], ds);
  }
  differentiate(shape, rowsOfTile(args, shape, block, queries),
                ScorePlace<kColumns, false>::of(
                    shape, block.at.first, block.segments,
                    queries.tile.index * kColumns, queries.tile),
                p, ds);
  addProduct(rounded(ds), tiles.right[kScores], dk);
  __syncthreads();
  if (staysAhead)
    stage<Kind>(tiles.right[kScores], shape,
                rowsOfTile(args, shape, block, next).q, 0);
  qlora_commit_copies();
  addProduct(rounded(p), tiles.right[kSlopes], dv);
  __syncthreads();
  if (staysAhead)
    stage<Kind>(tiles.right[kSlopes], shape,
                rowsOfTile(args, shape, block, next).dout, 0);
  qlora_commit_copies();
}

/// Computes dk and dv of 64 keys, summed over their key head's query heads.
template <AttentionKind Kind, int Width>
QLORA_DEVICE void attentionGradKeys(const qlora_cuda_args &args,
                                    GradientTiles<Width> &tiles) {
  AttentionShape shape = AttentionShape::of(args, 13);
  KeyBlock block;
  block.at = placeOf(shape, shape.keyHeads, Width, /*isReversed=*/false);
  block.range = queryTiles(shape, block.at.first, kColumns);
  block.segments = segmentRange(shape, block.at.first, kTile);
  block.group = shape.heads / shape.keyHeads;
  QueryTile queries = nextQueries(shape, block, -1, block.range.end);
  if (Kind == kFast && queries.member < block.group)
    stageBlock<Kind, false>(tiles, shape,
                            rowsOfTile(args, shape, block, queries), 0);
  WarpSums<Width> dk = {}, dv = {};
  while (queries.member < block.group) {
    const QueryTile next =
        nextQueries(shape, block, queries.member, queries.tile.index + 1);
    addQueries<Kind>(tiles, args, shape, block, queries, next, dk, dv);
    queries = next;
  }
  const int dimension = block.at.part * Width;
  const float scale[2] = {shape.scale, shape.scale}, ones[2] = {1, 1};
  const auto rows = [&](int operand, int ld) {
    return rowsOf(shape, args.buffers[operand], args.constants[ld],
                  block.at.batch, block.at.head, block.at.first);
  };
  storeSums(dk, shape, args.buffers[8], rows(8, 11), dimension, scale);
  storeSums(dv, shape, args.buffers[9], rows(9, 12), dimension, ones);
}

// dQ -------------------------------------------------------------------------

/// Waits for a tile of keys and processes it; begins to copy the next tile. The
/// product with v comes first, so that v's buffer is free early.
template <AttentionKind Kind, int Width>
QLORA_DEVICE void addKeys(GradientTiles<Width> &tiles,
                          const AttentionShape &shape, const GradientRows &rows,
                          const ScorePlace<kColumns, true> &place, int nextKey,
                          int part, WarpSums<Width> &dq) {
  const int parts = Kind == kFast ? 1 : (shape.dim + Width - 1) / Width;
  const bool staysAhead = Kind == kFast && nextKey < shape.length;
  WarpSums<kColumns> p = {}, ds = {};
  for (int step = 1; step <= parts; ++step) {
    if (Kind == kAny) {
      __syncthreads();
      stageBlock<Kind, true>(tiles, shape, rows, (part + step) % parts * Width);
    }
    qlora_wait_copies<1>();
    __syncthreads();
    multiplyRows(tiles.left[kSlopes], tiles.right[kSlopes], ds);
    qlora_wait_copies<0>();
    __syncthreads();
    if (staysAhead)
      stage<Kind>(tiles.right[kSlopes], shape, rows.v.from(nextKey), 0);
    qlora_commit_copies();
    multiplyRows(tiles.left[kScores], tiles.right[kScores], p);
  }
  differentiate(shape, rows, place, p, ds);
  addProduct(rounded(ds), tiles.right[kScores], dq);
  __syncthreads();
  if (staysAhead)
    stage<Kind>(tiles.right[kScores], shape, rows.k.from(nextKey), 0);
  qlora_commit_copies();
}

/// Computes dq of 64 queries of one head.
template <AttentionKind Kind, int Width>
QLORA_DEVICE void attentionGradQueries(const qlora_cuda_args &args,
                                       GradientTiles<Width> &tiles) {
  AttentionShape shape = AttentionShape::of(args, 13);
  const AttentionPlace at =
      placeOf(shape, shape.heads, Width, /*isReversed=*/true);
  const TileRange range = keyTiles(shape, at.first, kColumns);
  const SegmentRange segments = segmentRange(shape, at.first, kTile);
  TileStep tile = nextTile<kColumns>(shape, segments, range.begin, range.end);
  GradientRows rows =
      gradientRows(args, shape, at.batch, at.head, keyHeadOf(shape, at.head),
                   at.first, tile.index * kColumns);
  if (Kind == kFast && tile.index < range.end)
    stageBlock<Kind, true>(tiles, shape, rows, 0);
  WarpSums<Width> dq = {};
  while (tile.index < range.end) {
    const TileStep next =
        nextTile<kColumns>(shape, segments, tile.index + 1, range.end);
    const int nextKey =
        next.index < range.end ? next.index * kColumns : shape.length;
    addKeys<Kind>(tiles, shape, rows,
                  ScorePlace<kColumns, true>::of(shape, at.first, segments,
                                                 tile.index * kColumns, tile),
                  nextKey, at.part, dq);
    tile = next;
    rows.k = rows.k.from(nextKey);
    rows.v = rows.v.from(nextKey);
  }
  const float scale[2] = {shape.scale, shape.scale};
  storeSums(dq, shape, args.buffers[7],
            rowsOf(shape, args.buffers[7], args.constants[10], at.batch,
                   at.head, at.first),
            at.part * Width, scale);
}

// Symbols --------------------------------------------------------------------

#define QLORA_ATTENTION_KERNEL(Symbol, Function, Name, Kind, Width)            \
  QLORA_CUDA_KERNEL(kWarpThreads, Width == 128 ? 2 : 3)                        \
  Symbol##_bf16_##Name(const __grid_constant__ qlora_cuda_args args) {         \
    __shared__ GradientTiles<Width> tiles;                                     \
    Function<Kind>(args, tiles);                                               \
  }
#define QLORA_ATTENTION(Name, Kind, Width)                                     \
  QLORA_ATTENTION_KERNEL(qlora_attention_grad_keys, attentionGradKeys, Name,   \
                         Kind, Width)                                          \
  QLORA_ATTENTION_KERNEL(qlora_attention_grad_queries, attentionGradQueries,   \
                         Name, Kind, Width)
QLORA_ATTENTION(64, kFast, 64)
QLORA_ATTENTION(128, kFast, 128)
QLORA_ATTENTION(any, kAny, 64)
