// SPDX-License-Identifier: MIT

// attention_grad in f32, and rowsum(dO O) for all types.

#include "runtime/Kernels/Cuda/Device/AttentionTiles.cuh"

/// Computes delta = rowsum(dO O): a warp sums one row of one head.
/// constants[17] is batch * length * heads.
template <typename T>
QLORA_DEVICE void attentionDelta(const qlora_cuda_args &args) {
  const int64_t heads = args.constants[2], length = args.constants[1];
  const int64_t dim = args.constants[4];
  const int64_t index = int64_t(blockIdx.x) * (kAttentionThreads / kQloraWarp) +
                        threadIdx.x / kQloraWarp;
  if (index >= args.constants[17])
    return;
  const int64_t head = index % heads, token = index / heads;
  const int64_t out = token * args.constants[8] + head * dim;
  const int64_t dout = token * args.constants[9] + head * dim;
  float sum = 0;
  for (int64_t d = threadIdx.x % kQloraWarp; d < dim; d += kQloraWarp)
    sum +=
        T::load(args.buffers[4], out + d) * T::load(args.buffers[6], dout + d);
  sum = qlora_warp_sum(sum);
  if (threadIdx.x % kQloraWarp == 0)
    qlora_store_f32(args.buffers[10],
                    (token / length * heads + head) * length + token % length,
                    sum);
}

/// `p`: probability of a key for a query, 0 if the key is not visible.
/// `factor`: derivative of their score with respect to their dot product.
struct Probable {
  float p, factor;
};

QLORA_DEVICE Probable probability(const AttentionShape &shape,
                                  const GradientRows &rows, int query, int key,
                                  int32_t querySegment, int32_t keySegment,
                                  float product) {
  if (!shape.sees(query, key, querySegment, keySegment))
    return {0, 0};
  const float score = shape.score(product);
  return {qlora_exp(score - rows.lse[query]), shape.scale * shape.slope(score)};
}

QLORA_DEVICE float scoreGradient(const GradientRows &rows, int query,
                                 Probable pair, float dp) {
  return pair.p == 0.0f ? 0.0f
                        : pair.factor * pair.p * (dp - rows.delta[query]);
}

/// Processes a tile of queries for a block of keys. Keys are the left side.
QLORA_DEVICE void addQueries(AttentionTiles &tiles, const AttentionShape &shape,
                             const GradientRows &rows, int64_t part,
                             AttentionSum &dk, AttentionSum &dv) {
  float p[kSide][kSide], factors[kSide][kSide], ds[kSide][kSide];
  multiplyRows(tiles, shape, rows.k, rows.q, p);
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i)
    QLORA_UNROLL
    for (int j = 0; j < kSide; ++j) {
      const int row = threadRow() * kSide + i;
      const int column = threadColumn() + 16 * j;
      const Probable pair = probability(
          shape, rows, rows.q.first + column, rows.k.first + row,
          tiles.rightSegments[column], tiles.leftSegments[row], p[i][j]);
      p[i][j] = pair.p;
      factors[i][j] = pair.factor;
    }
  shareScores(tiles, p);
  addProduct(tiles, shape, rows.dout, part, dv);
  multiplyRows(tiles, shape, rows.v, rows.dout, ds);
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i)
    QLORA_UNROLL
    for (int j = 0; j < kSide; ++j)
      ds[i][j] = scoreGradient(rows, rows.q.first + threadColumn() + 16 * j,
                               {p[i][j], factors[i][j]}, ds[i][j]);
  shareScores(tiles, ds);
  addProduct(tiles, shape, rows.q, part, dk);
}

/// Computes dk and dv of 64 keys, summed over their key head's query heads.
QLORA_DEVICE void attentionGradKeys(const qlora_cuda_args &args,
                                    AttentionTiles &tiles) {
  AttentionShape shape = AttentionShape::of(args, 13);
  const AttentionPlace at =
      placeOf(shape, shape.keyHeads, kWidth, /*isReversed=*/false);
  const int group = shape.heads / shape.keyHeads;
  const int firstKey = at.first;
  const TileRange range = queryTiles(shape, firstKey, kTile);
  AttentionSum dk, dv;
  clearSum(dk);
  clearSum(dv);
  stageSegments(tiles.leftSegments, shape, firstKey);
  for (int member = 0; member < group; ++member)
    for (int tile = range.begin; tile < range.end; ++tile) {
      stageSegments(tiles.rightSegments, shape, tile * kTile);
      __syncthreads();
      if (mayMeet(tiles, shape))
        addQueries(tiles, shape,
                   gradientRows(args, shape, at.batch, at.head * group + member,
                                at.head, tile * kTile, firstKey),
                   at.part, dk, dv);
      __syncthreads();
    }
  const float ones[kSide] = {1, 1, 1, 1};
  storeSum(dk, shape, args.buffers[8],
           rowsOf(shape, args.buffers[8], args.constants[11], at.batch, at.head,
                  firstKey),
           at.part, ones);
  storeSum(dv, shape, args.buffers[9],
           rowsOf(shape, args.buffers[9], args.constants[12], at.batch, at.head,
                  firstKey),
           at.part, ones);
}

/// Processes a tile of keys for a block of queries. Queries are the left side.
QLORA_DEVICE void addKeys(AttentionTiles &tiles, const AttentionShape &shape,
                          const GradientRows &rows, int64_t part,
                          AttentionSum &dq) {
  float p[kSide][kSide], ds[kSide][kSide];
  multiplyRows(tiles, shape, rows.q, rows.k, p);
  multiplyRows(tiles, shape, rows.dout, rows.v, ds);
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i)
    QLORA_UNROLL
    for (int j = 0; j < kSide; ++j) {
      const int row = threadRow() * kSide + i;
      const int column = threadColumn() + 16 * j;
      const int query = rows.q.first + row;
      const Probable pair = probability(
          shape, rows, query, rows.k.first + column, tiles.leftSegments[row],
          tiles.rightSegments[column], p[i][j]);
      ds[i][j] = scoreGradient(rows, query, pair, ds[i][j]);
    }
  shareScores(tiles, ds);
  addProduct(tiles, shape, rows.k, part, dq);
}

QLORA_DEVICE void attentionGradQueries(const qlora_cuda_args &args,
                                       AttentionTiles &tiles) {
  AttentionShape shape = AttentionShape::of(args, 13);
  const AttentionPlace at =
      placeOf(shape, shape.heads, kWidth, /*isReversed=*/true);
  const int firstQuery = at.first, keyHead = keyHeadOf(shape, at.head);
  const TileRange range = keyTiles(shape, firstQuery, kTile);
  AttentionSum dq;
  clearSum(dq);
  stageSegments(tiles.leftSegments, shape, firstQuery);
  for (int tile = range.begin; tile < range.end; ++tile) {
    stageSegments(tiles.rightSegments, shape, tile * kTile);
    __syncthreads();
    if (mayMeet(tiles, shape))
      addKeys(tiles, shape,
              gradientRows(args, shape, at.batch, at.head, keyHead, firstQuery,
                           tile * kTile),
              at.part, dq);
    __syncthreads();
  }
  const float ones[kSide] = {1, 1, 1, 1};
  storeSum(dq, shape, args.buffers[7],
           rowsOf(shape, args.buffers[7], args.constants[10], at.batch, at.head,
                  firstQuery),
           at.part, ones);
}

// Symbols --------------------------------------------------------------------

// One block per multiprocessor: with two, threads have too few registers.
QLORA_CUDA_KERNEL(kAttentionThreads, 1)
qlora_attention_grad_keys_f32(const __grid_constant__ qlora_cuda_args args) {
  __shared__ AttentionTiles tiles;
  attentionGradKeys(args, tiles);
}
QLORA_CUDA_KERNEL(kAttentionThreads, 1)
qlora_attention_grad_queries_f32(const __grid_constant__ qlora_cuda_args args) {
  __shared__ AttentionTiles tiles;
  attentionGradQueries(args, tiles);
}

QLORA_CUDA_SYMBOL(kAttentionThreads, qlora_attention_delta_f32,
                  attentionDelta<qlora_f32>)
QLORA_CUDA_SYMBOL(kAttentionThreads, qlora_attention_delta_bf16,
                  attentionDelta<qlora_bf16>)
