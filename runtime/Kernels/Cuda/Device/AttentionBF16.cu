// SPDX-License-Identifier: MIT

// attention in bf16. A block computes 64 queries of one head, 64 keys at a
// time. K and V have one buffer each: K is loaded during P V, V during Q K^T.
//
// With width 128, a block has 4 warps, 48 KiB of shared memory and under 200
// registers per thread (64 for the output, 32 for scores), so two blocks fit on
// a multiprocessor. With width 64 (24 KiB, 168 registers), three blocks fit.
//
// Maxima are rounded up to integers. Weights 2^(score - maximum) of other
// maxima then differ by powers of two, so their rounding to bf16 depends
// neither on the order nor on the tiles of keys. cached_attention has the same
// weights: a sampled token has the log-probability that training computes.

#include "runtime/Kernels/Cuda/Device/AttentionWarps.cuh"

template <int Width> struct ForwardTiles {
  HalfTile<kTile, Width> queries, keys, values;
};

/// Softmax state of a lane's rows, lane / 4 and lane / 4 + 8 of its warp.
/// Scores are base-2 exponents. `sum` is partial until finishRow().
struct SoftmaxState {
  float maximum[2], sum[2];
};

/// Return the maximum and the sum over the four lanes that share rows.
QLORA_DEVICE float quadMaximum(float value) {
  value = qlora_max(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return qlora_max(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
QLORA_DEVICE float quadSum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

/// Replaces the scores of a tile by 2^(score - maximum); rescales the sums.
template <int Width>
QLORA_DEVICE void softmaxStep(WarpSums<kTile> &scores, SoftmaxState &state,
                              WarpSums<Width> &output) {
  QLORA_UNROLL
  for (int r = 0; r < 2; ++r) {
    float most = state.maximum[r];
    QLORA_UNROLL
    for (int j = 0; j < WarpSums<kTile>::kCount; ++j)
      QLORA_UNROLL
      for (int i = 2 * r; i < 2 * r + 2; ++i)
        most = qlora_max(most, scores.tile[j].value[i]);
    most = ceilf(quadMaximum(most));
    // Without a visible key, shift by 0: 2^(-inf - -inf) would be NaN.
    const float shift = most == attentionNone() ? 0.0f : most;
    const float rescale = qlora_exp2(state.maximum[r] - shift);
    state.maximum[r] = most;
    state.sum[r] *= rescale;
    QLORA_UNROLL
    for (int j = 0; j < WarpSums<kTile>::kCount; ++j)
      QLORA_UNROLL
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        scores.tile[j].value[i] = qlora_exp2(scores.tile[j].value[i] - shift);
        state.sum[r] += scores.tile[j].value[i];
      }
    QLORA_UNROLL
    for (int j = 0; j < WarpSums<Width>::kCount; ++j)
      QLORA_UNROLL
      for (int i = 2 * r; i < 2 * r + 2; ++i)
        output.tile[j].value[i] *= rescale;
  }
}

/// Writes a row's log-sum-exp. Returns 1 / sum, the factor of its output.
QLORA_DEVICE float finishRow(const AttentionShape &shape, float *lse, int query,
                             float maximum, float ownSum) {
  const float sum = quadSum(ownSum);
  if (warpLane() % 4 == 0 && query < shape.length)
    lse[query] = sum > 0 ? (maximum + log2f(sum)) * kLn2 : 0.0f;
  return sum > 0 ? 1.0f / sum : 0.0f;
}

/// Operand addresses of a block.
struct ForwardRows {
  AttentionRows q, k, v, out;
  float *lse; ///< row of this head and sequence
};

QLORA_DEVICE ForwardRows forwardRows(const qlora_cuda_args &args,
                                     const AttentionShape &shape,
                                     const AttentionPlace &at) {
  const int keyHead = keyHeadOf(shape, at.head);
  const int64_t *c = args.constants;
  void *const *buffers = args.buffers;
  return {rowsOf(shape, buffers[0], c[5], at.batch, at.head, at.first),
          rowsOf(shape, buffers[1], c[6], at.batch, keyHead, 0),
          rowsOf(shape, buffers[2], c[7], at.batch, keyHead, 0),
          rowsOf(shape, buffers[4], c[8], at.batch, at.head, at.first),
          static_cast<float *>(buffers[5]) +
              (int64_t(at.batch) * shape.heads + at.head) * shape.length};
}

/// Waits for a tile of keys and processes it; begins to copy the next tile.
template <AttentionKind Kind, int Width>
QLORA_DEVICE void addKeys(ForwardTiles<Width> &tiles,
                          const AttentionShape &shape, const ForwardRows &rows,
                          const ScorePlace<kTile, true> &place, int firstKey,
                          int nextKey, int dimension, SoftmaxState &state,
                          WarpSums<Width> &output) {
  const AttentionRows keys = rows.k.from(firstKey);
  WarpSums<kTile> scores = {};
  const int depth = Kind == kFast ? Width : shape.dim;
  for (int piece = 0; piece < depth; piece += Width) {
    if (Kind == kAny) {
      __syncthreads();
      stage<Kind>(tiles.queries, shape, rows.q, piece);
      stage<Kind>(tiles.keys, shape, keys, piece);
    }
    qlora_wait_copies<0>();
    __syncthreads();
    if (piece + Width >= depth) {
      stage<Kind>(tiles.values, shape, rows.v.from(firstKey), dimension);
      qlora_commit_copies();
    }
    multiplyRows(tiles.queries, tiles.keys, scores);
  }
  __syncthreads();
  if (Kind == kFast && nextKey < shape.length)
    stage<Kind>(tiles.keys, shape, rows.k.from(nextKey), 0);
  qlora_commit_copies();
  scaleAndHide(shape, place, scores);
  softmaxStep(scores, state, output);
  qlora_wait_copies<1>();
  __syncthreads();
  addProduct(rounded(scores), tiles.values, output);
}

template <AttentionKind Kind, int Width>
QLORA_DEVICE void attention(const qlora_cuda_args &args,
                            ForwardTiles<Width> &tiles) {
  AttentionShape shape = AttentionShape::of(args, 9);
  const AttentionPlace at =
      placeOf(shape, shape.heads, Width, /*isReversed=*/true);
  const ForwardRows rows = forwardRows(args, shape, at);
  const TileRange range = keyTiles(shape, at.first, kTile);
  const SegmentRange segments = segmentRange(shape, at.first, kTile);
  TileStep tile = nextTile<kTile>(shape, segments, range.begin, range.end);
  if (Kind == kFast && tile.index < range.end) {
    stage<Kind>(tiles.queries, shape, rows.q, 0);
    stage<Kind>(tiles.keys, shape, rows.k.from(tile.index * kTile), 0);
  }
  qlora_commit_copies();
  WarpSums<Width> output = {};
  SoftmaxState state;
  QLORA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const AttentionSink sink =
        sinkOf(args, shape, at.head,
               at.first + warpFirstRow() + warpLane() / 4 + 8 * r);
    state.maximum[r] = sink.maximum * kLog2E;
    // Sums are per lane: only one of a row's four lanes includes the sink.
    state.sum[r] = warpLane() % 4 == 0 ? sink.sum : 0.0f;
  }
  while (tile.index < range.end) {
    const TileStep next =
        nextTile<kTile>(shape, segments, tile.index + 1, range.end);
    const int nextKey =
        next.index < range.end ? next.index * kTile : shape.length;
    addKeys<Kind>(tiles, shape, rows,
                  ScorePlace<kTile, true>::of(shape, at.first, segments,
                                              tile.index * kTile, tile),
                  tile.index * kTile, nextKey, at.part * Width, state, output);
    tile = next;
  }
  float factor[2];
  QLORA_UNROLL
  for (int r = 0; r < 2; ++r)
    factor[r] = finishRow(shape, rows.lse,
                          at.first + warpFirstRow() + warpLane() / 4 + 8 * r,
                          state.maximum[r], state.sum[r]);
  storeSums(output, shape, args.buffers[4], rows.out, at.part * Width, factor);
}

#define QLORA_ATTENTION(Name, Kind, Width)                                     \
  QLORA_CUDA_KERNEL(kWarpThreads, Width == 128 ? 2 : 3)                        \
  qlora_attention_bf16_##Name(const __grid_constant__ qlora_cuda_args args) {  \
    __shared__ ForwardTiles<Width> tiles;                                      \
    attention<Kind>(args, tiles);                                              \
  }
QLORA_ATTENTION(64, kFast, 64)
QLORA_ATTENTION(128, kFast, 128)
QLORA_ATTENTION(any, kAny, 64)
