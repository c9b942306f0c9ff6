// SPDX-License-Identifier: MIT

// attention in f32. A block computes 64 queries of one head.

#include "runtime/Kernels/Cuda/Device/AttentionTiles.cuh"

/// Running softmax maxima and sums of a thread's rows.
struct SoftmaxState {
  float maximum[kSide], sum[kSide];
};

/// Replaces the scores of a tile by e^(score - maximum); rescales the sums.
QLORA_DEVICE void softmaxStep(const AttentionTiles &tiles,
                              const AttentionShape &shape, int firstQuery,
                              int firstKey, float (&scores)[kSide][kSide],
                              SoftmaxState &state, AttentionSum &output) {
  const float none = qlora_from_bits(0xff800000u);
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i) {
    const int row = threadRow() * kSide + i;
    float most = state.maximum[i];
    QLORA_UNROLL
    for (int j = 0; j < kSide; ++j) {
      const int column = threadColumn() + 16 * j;
      const bool isSeen =
          shape.sees(firstQuery + row, firstKey + column,
                     tiles.leftSegments[row], tiles.rightSegments[column]);
      scores[i][j] = isSeen ? shape.score(scores[i][j]) : none;
      most = qlora_max(most, scores[i][j]);
    }
    most = rowMaximum(most);
    // Without a visible key, shift by 0: e^(-inf - -inf) would be NaN.
    const float shift = most == none ? 0.0f : most;
    float sum = 0;
    QLORA_UNROLL
    for (int j = 0; j < kSide; ++j) {
      scores[i][j] = qlora_exp(scores[i][j] - shift);
      sum += scores[i][j];
    }
    const float rescale = qlora_exp(state.maximum[i] - shift);
    state.sum[i] = state.sum[i] * rescale + rowSum(sum);
    state.maximum[i] = most;
    QLORA_UNROLL
    for (int j = 0; j < 2 * kChunks; ++j)
      output.value[i][j] *= rescale;
  }
}

QLORA_DEVICE void attention(const qlora_cuda_args &args,
                            AttentionTiles &tiles) {
  AttentionShape shape = AttentionShape::of(args, 9);
  const AttentionPlace at =
      placeOf(shape, shape.heads, kWidth, /*isReversed=*/true);
  const int keyHead = keyHeadOf(shape, at.head);
  const int firstQuery = at.first;
  const AttentionRows queries = rowsOf(
      shape, args.buffers[0], args.constants[5], at.batch, at.head, firstQuery);
  AttentionSum output;
  clearSum(output);
  SoftmaxState state;
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i) {
    const AttentionSink sink =
        sinkOf(args, shape, at.head, firstQuery + threadRow() * kSide + i);
    state.maximum[i] = sink.maximum;
    state.sum[i] = sink.sum;
  }
  stageSegments(tiles.leftSegments, shape, firstQuery);
  const TileRange range = keyTiles(shape, firstQuery, kTile);
  for (int tile = range.begin; tile < range.end; ++tile) {
    const int firstKey = tile * kTile;
    stageSegments(tiles.rightSegments, shape, firstKey);
    __syncthreads();
    if (mayMeet(tiles, shape)) {
      float scores[kSide][kSide];
      multiplyRows(tiles, shape, queries,
                   rowsOf(shape, args.buffers[1], args.constants[6], at.batch,
                          keyHead, firstKey),
                   scores);
      softmaxStep(tiles, shape, firstQuery, firstKey, scores, state, output);
      shareScores(tiles, scores);
      addProduct(tiles, shape,
                 rowsOf(shape, args.buffers[2], args.constants[7], at.batch,
                        keyHead, firstKey),
                 at.part, output);
    }
    __syncthreads();
  }
  float factor[kSide];
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i) {
    const int query = firstQuery + threadRow() * kSide + i;
    factor[i] = state.sum[i] > 0 ? 1.0f / state.sum[i] : 0.0f;
    const float lse =
        state.sum[i] > 0 ? state.maximum[i] + logf(state.sum[i]) : 0.0f;
    if (threadColumn() == 0 && at.part == 0 && query < shape.length)
      qlora_store_f32(
          args.buffers[5],
          (int64_t(at.batch) * shape.heads + at.head) * shape.length + query,
          lse);
  }
  storeSum(output, shape, args.buffers[4],
           rowsOf(shape, args.buffers[4], args.constants[8], at.batch, at.head,
                  firstQuery),
           at.part, factor);
}

QLORA_CUDA_KERNEL(kAttentionThreads)
qlora_attention_f32(const __grid_constant__ qlora_cuda_args args) {
  __shared__ AttentionTiles tiles;
  attention(args, tiles);
}
