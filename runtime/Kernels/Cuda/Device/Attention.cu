// SPDX-License-Identifier: MIT

// attention and attention_grad with the online softmax (Milakov and
// Gimelshein, 2018; FlashAttention): tiles of 64 queries by 64 keys, whose
// scores exist in registers only. A block computes 64 rows of one result for
// one head and up to 128 of its dimensions; a wider head has several
// blocks that make the same scores. No atomics: each sum is made by one thread
// in one order.
//
//   P = e^(S - lse)      dV = P^T dO         dP = dO V^T
//   dS = scale P (dP - delta)                delta = rowsum(dO O)
//   dQ = dS K            dK = dS^T Q
//
// The gradient is three kernels: delta, then dK and dV by blocks of keys, then
// dQ by blocks of queries. Buffers and constants are those of the op.

#include "runtime/Kernels/Cuda/Device/Common.cuh"

constexpr int kAttentionThreads = 256; // 16 by 16
constexpr int kTile = 64;              // rows and columns of a tile of scores
constexpr int kDepth = 32;             // dimensions that are staged at once
constexpr int kSide = 4;               // kTile / 16: rows of a thread
constexpr int kChunks = 4;             // kDepth dimensions each: of one block

/// What lies in shared memory. Odd strides keep columns in different banks.
struct AttentionTiles {
  float left[kTile][kDepth + 1];
  float right[kTile][kDepth + 1];
  float scores[kTile][kTile + 1];
  int32_t leftSegments[kTile], rightSegments[kTile];
};

struct AttentionShape {
  int64_t length, heads, keyHeads, dim, window;
  float scale;
  const int32_t *segments; ///< of the batch, then of a row of it; or null

  /// `window` is the position of that constant; scale follows it.
  QLORA_DEVICE AttentionShape of(const qlora_cuda_args &args, int window) {
    const double scale =
        __builtin_bit_cast(double, args.constants[window + 1]);
    return {args.constants[1], args.constants[2], args.constants[3],
            args.constants[4], args.constants[window], float(scale),
            static_cast<const int32_t *>(args.buffers[3])};
  }

  __device__ bool sees(int64_t query, int64_t key, int32_t querySegment,
                       int32_t keySegment) const {
    if (key > query || query >= length)
      return false;
    if (window != 0 && key + window <= query)
      return false;
    return !segments || (querySegment != 0 && querySegment == keySegment);
  }
};

/// Rows [first, first + 64) of one head of a [B, T, heads * dim] matrix.
struct AttentionRows {
  const void *data;
  int64_t offset, ld, first;
};

/// Which 64 rows of which head a block computes.
struct AttentionPlace {
  int64_t tile, head, batch, part;
};

QLORA_DEVICE int threadRow() { return int(threadIdx.x) / 16; }
QLORA_DEVICE int threadColumn() { return int(threadIdx.x) % 16; }

/// tile[row][d] := element dimension + d of a row; zero outside.
template <typename T>
QLORA_DEVICE void stage(float (&tile)[kTile][kDepth + 1],
                        const AttentionShape &shape, const AttentionRows &rows,
                        int64_t dimension) {
  const int d = int(threadIdx.x) % kDepth;
  for (int row = int(threadIdx.x) / kDepth; row < kTile;
       row += kAttentionThreads / kDepth) {
    const int64_t token = rows.first + row;
    const bool isInside = token < shape.length && dimension + d < shape.dim;
    tile[row][d] = isInside ? T::load(rows.data, rows.offset + token * rows.ld +
                                                     dimension + d)
                            : 0.0f;
  }
}

QLORA_DEVICE void stageSegments(int32_t (&segments)[kTile],
                                const AttentionShape &shape, int64_t first) {
  const int64_t token = first + threadIdx.x;
  if (shape.segments && threadIdx.x < kTile)
    segments[threadIdx.x] = token < shape.length ? shape.segments[token] : 0;
}

/// products[i][j] := left row (4 ty + i) . right row (tx + 16 j).
template <typename T>
QLORA_DEVICE void multiplyRows(AttentionTiles &tiles,
                               const AttentionShape &shape,
                               const AttentionRows &left,
                               const AttentionRows &right,
                               float (&products)[kSide][kSide]) {
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i)
    QLORA_UNROLL
    for (int j = 0; j < kSide; ++j)
      products[i][j] = 0;
  for (int64_t dimension = 0; dimension < shape.dim; dimension += kDepth) {
    stage<T>(tiles.left, shape, left, dimension);
    stage<T>(tiles.right, shape, right, dimension);
    __syncthreads();
    QLORA_UNROLL_8
    for (int d = 0; d < kDepth; ++d) {
      float a[kSide], b[kSide];
      QLORA_UNROLL
      for (int i = 0; i < kSide; ++i) {
        a[i] = tiles.left[threadRow() * kSide + i][d];
        b[i] = tiles.right[threadColumn() + 16 * i][d];
      }
      QLORA_UNROLL
      for (int i = 0; i < kSide; ++i)
        QLORA_UNROLL
        for (int j = 0; j < kSide; ++j)
          products[i][j] += a[i] * b[j];
    }
    __syncthreads();
  }
}

/// Puts a thread's part of a tile where addProduct reads it.
QLORA_DEVICE void shareScores(AttentionTiles &tiles,
                              const float (&scores)[kSide][kSide]) {
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i)
    QLORA_UNROLL
    for (int j = 0; j < kSide; ++j)
      tiles.scores[threadRow() * kSide + i][threadColumn() + 16 * j] =
          scores[i][j];
  __syncthreads();
}

/// A thread's 4 rows of the result: dimensions tx + 16 j of the block's part.
struct AttentionSum {
  float value[kSide][2 * kChunks];
};

QLORA_DEVICE void clearSum(AttentionSum &sum) {
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i)
    QLORA_UNROLL
    for (int j = 0; j < 2 * kChunks; ++j)
      sum.value[i][j] = 0;
}

/// sum += the shared scores [64, 64] . rows [64, dimensions of the part].
template <typename T>
QLORA_DEVICE void addProduct(AttentionTiles &tiles, const AttentionShape &shape,
                             const AttentionRows &rows, int64_t part,
                             AttentionSum &sum) {
  QLORA_UNROLL
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int64_t dimension = (part * kChunks + chunk) * kDepth;
    if (dimension >= shape.dim)
      break;
    stage<T>(tiles.right, shape, rows, dimension);
    __syncthreads();
    QLORA_UNROLL_8
    for (int k = 0; k < kTile; ++k) {
      const float b0 = tiles.right[k][threadColumn()];
      const float b1 = tiles.right[k][threadColumn() + 16];
      QLORA_UNROLL
      for (int i = 0; i < kSide; ++i) {
        const float a = tiles.scores[threadRow() * kSide + i][k];
        sum.value[i][2 * chunk] += a * b0;
        sum.value[i][2 * chunk + 1] += a * b1;
      }
    }
    __syncthreads();
  }
}

/// Stores factor[i] * sum of the rows that exist.
template <typename T>
QLORA_DEVICE void storeSum(const AttentionSum &sum,
                           const AttentionShape &shape, void *out,
                           const AttentionRows &rows, int64_t part,
                           const float (&factor)[kSide]) {
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i) {
    const int64_t token = rows.first + threadRow() * kSide + i;
    QLORA_UNROLL
    for (int j = 0; j < 2 * kChunks; ++j) {
      const int64_t dimension =
          part * kChunks * kDepth + j * 16 + threadColumn();
      if (token < shape.length && dimension < shape.dim)
        T::store(out, rows.offset + token * rows.ld + dimension,
                 factor[i] * sum.value[i][j]);
    }
  }
}

/// Over the 16 threads that share rows.
QLORA_DEVICE float rowMaximum(float value) {
  for (int offset = 8; offset > 0; offset /= 2)
    value = qlora_max(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}
QLORA_DEVICE float rowSum(float value) {
  for (int offset = 8; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

/// Whether a segment of one side may be on the other; both are staged.
QLORA_DEVICE bool mayMeet(const AttentionTiles &tiles,
                          const AttentionShape &shape) {
  if (!shape.segments)
    return true;
  int32_t least[2] = {0x7fffffff, 0x7fffffff}, most[2] = {0, 0};
  for (int i = 0; i < kTile; ++i) {
    const int32_t sides[2] = {tiles.leftSegments[i], tiles.rightSegments[i]};
    for (int side = 0; side < 2; ++side)
      if (sides[side] != 0) {
        least[side] = sides[side] < least[side] ? sides[side] : least[side];
        most[side] = sides[side] > most[side] ? sides[side] : most[side];
      }
  }
  return least[0] <= most[1] && least[1] <= most[0];
}

QLORA_DEVICE int64_t tileCount(const AttentionShape &shape) {
  return (shape.length + kTile - 1) / kTile;
}

/// Blocks with the most work first: the last queries, the first keys. Moves
/// the segments to the block's row of the batch.
QLORA_DEVICE AttentionPlace placeOf(AttentionShape &shape, int64_t heads,
                                    bool isReversed) {
  constexpr int64_t kPart = kChunks * kDepth;
  const int64_t parts = (shape.dim + kPart - 1) / kPart;
  const int64_t batches = gridDim.x / (tileCount(shape) * heads * parts);
  int64_t index = blockIdx.x;
  AttentionPlace place;
  place.part = index % parts;
  index /= parts;
  place.head = index % heads;
  index /= heads;
  place.batch = index % batches;
  place.tile = index / batches;
  if (isReversed)
    place.tile = tileCount(shape) - 1 - place.tile;
  if (shape.segments)
    shape.segments += place.batch * shape.length;
  return place;
}

QLORA_DEVICE AttentionRows rowsOf(const AttentionShape &shape, const void *data,
                                  int64_t ld, int64_t batch, int64_t head,
                                  int64_t first) {
  return {data, batch * shape.length * ld + head * shape.dim, ld, first};
}

/// The first tile of keys that the window of the tile's queries reaches.
QLORA_DEVICE int64_t firstKeyTile(const AttentionShape &shape, int64_t tile) {
  const int64_t first = tile * kTile - shape.window + 1;
  return shape.window == 0 || first < 0 ? 0 : first / kTile;
}

// Forward ---------------------------------------------------------------------

/// Maximum and sum of a thread's rows so far.
struct SoftmaxState {
  float maximum[kSide], sum[kSide];
};

/// Scores to e^(score - maximum), with the sums so far rescaled.
QLORA_DEVICE void softmaxStep(const AttentionTiles &tiles,
                              const AttentionShape &shape, int64_t firstQuery,
                              int64_t firstKey, float (&scores)[kSide][kSide],
                              SoftmaxState &state,
                              AttentionSum &output) {
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
      scores[i][j] = isSeen ? scores[i][j] * shape.scale : none;
      most = qlora_max(most, scores[i][j]);
    }
    most = rowMaximum(most);
    // A row that has seen nothing yet: e^(none - 0) is 0.
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

template <typename T>
QLORA_DEVICE void attention(const qlora_cuda_args &args,
                            AttentionTiles &tiles) {
  AttentionShape shape = AttentionShape::of(args, 9);
  const AttentionPlace at =
      placeOf(shape, shape.heads, /*isReversed=*/true);
  const int64_t keyHead = at.head / (shape.heads / shape.keyHeads);
  const int64_t firstQuery = at.tile * kTile;
  const AttentionRows queries = rowsOf(shape, args.buffers[0],
                                       args.constants[5], at.batch, at.head,
                                       firstQuery);
  AttentionSum output;
  clearSum(output);
  SoftmaxState state;
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i) {
    state.maximum[i] = qlora_from_bits(0xff800000u);
    state.sum[i] = 0;
  }
  stageSegments(tiles.leftSegments, shape, firstQuery);
  for (int64_t tile = firstKeyTile(shape, at.tile); tile <= at.tile; ++tile) {
    const int64_t firstKey = tile * kTile;
    stageSegments(tiles.rightSegments, shape, firstKey);
    __syncthreads();
    if (mayMeet(tiles, shape)) {
      float scores[kSide][kSide];
      multiplyRows<T>(tiles, shape, queries,
                      rowsOf(shape, args.buffers[1], args.constants[6],
                             at.batch, keyHead, firstKey),
                      scores);
      softmaxStep(tiles, shape, firstQuery, firstKey, scores, state, output);
      shareScores(tiles, scores);
      addProduct<T>(tiles, shape,
                    rowsOf(shape, args.buffers[2], args.constants[7], at.batch,
                           keyHead, firstKey),
                    at.part, output);
    }
    __syncthreads();
  }
  float factor[kSide];
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i) {
    const int64_t query = firstQuery + threadRow() * kSide + i;
    factor[i] = state.sum[i] > 0 ? 1.0f / state.sum[i] : 0.0f;
    const float lse =
        state.sum[i] > 0 ? state.maximum[i] + logf(state.sum[i]) : 0.0f;
    if (threadColumn() == 0 && at.part == 0 && query < shape.length)
      qlora_store_f32(args.buffers[5],
                      (at.batch * shape.heads + at.head) * shape.length + query,
                      lse);
  }
  storeSum<T>(output, shape, args.buffers[4],
              rowsOf(shape, args.buffers[4], args.constants[8], at.batch,
                     at.head, firstQuery),
              at.part, factor);
}

// Gradient --------------------------------------------------------------------

/// A warp sums one row of one head. Constant 16: batch * length * heads.
template <typename T>
QLORA_DEVICE void attentionDelta(const qlora_cuda_args &args) {
  const int64_t heads = args.constants[2], length = args.constants[1];
  const int64_t dim = args.constants[4];
  const int64_t index = int64_t(blockIdx.x) * (kAttentionThreads / kQloraWarp) +
                        threadIdx.x / kQloraWarp;
  if (index >= args.constants[16])
    return;
  const int64_t head = index % heads, token = index / heads;
  const int64_t out = token * args.constants[8] + head * dim;
  const int64_t dout = token * args.constants[9] + head * dim;
  float sum = 0;
  for (int64_t d = threadIdx.x % kQloraWarp; d < dim; d += kQloraWarp)
    sum += T::load(args.buffers[4], out + d) * T::load(args.buffers[6], dout + d);
  sum = qlora_warp_sum(sum);
  if (threadIdx.x % kQloraWarp == 0)
    qlora_store_f32(args.buffers[10],
                    (token / length * heads + head) * length + token % length,
                    sum);
}

/// What the gradient's two kernels know of one tile.
struct GradientRows {
  AttentionRows q, k, v, dout;
  const float *lse, *delta; ///< of this head and row of the batch
};

QLORA_DEVICE GradientRows gradientRows(const qlora_cuda_args &args,
                                       const AttentionShape &shape,
                                       int64_t batch, int64_t head,
                                       int64_t firstQuery, int64_t firstKey) {
  const int64_t keyHead = head / (shape.heads / shape.keyHeads);
  const int64_t line = (batch * shape.heads + head) * shape.length;
  const int64_t *c = args.constants;
  return {rowsOf(shape, args.buffers[0], c[5], batch, head, firstQuery),
          rowsOf(shape, args.buffers[1], c[6], batch, keyHead, firstKey),
          rowsOf(shape, args.buffers[2], c[7], batch, keyHead, firstKey),
          rowsOf(shape, args.buffers[6], c[9], batch, head, firstQuery),
          static_cast<const float *>(args.buffers[5]) + line,
          static_cast<const float *>(args.buffers[10]) + line};
}

/// P of one pair from its product, 0 where the query does not see the key.
QLORA_DEVICE float probability(const AttentionShape &shape,
                               const GradientRows &rows, int64_t query,
                               int64_t key, int32_t querySegment,
                               int32_t keySegment, float product) {
  if (!shape.sees(query, key, querySegment, keySegment))
    return 0;
  return qlora_exp(product * shape.scale - rows.lse[query]);
}

QLORA_DEVICE float scoreGradient(const AttentionShape &shape,
                                 const GradientRows &rows, int64_t query,
                                 float p, float dp) {
  return p == 0.0f ? 0.0f : shape.scale * p * (dp - rows.delta[query]);
}

/// One tile of queries for a block of keys: the left side are the keys.
template <typename T>
QLORA_DEVICE void addQueries(AttentionTiles &tiles, const AttentionShape &shape,
                             const GradientRows &rows, int64_t part,
                             AttentionSum &dk,
                             AttentionSum &dv) {
  float p[kSide][kSide], ds[kSide][kSide];
  multiplyRows<T>(tiles, shape, rows.k, rows.q, p);
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i)
    QLORA_UNROLL
    for (int j = 0; j < kSide; ++j) {
      const int row = threadRow() * kSide + i;
      const int column = threadColumn() + 16 * j;
      p[i][j] = probability(shape, rows, rows.q.first + column,
                            rows.k.first + row, tiles.rightSegments[column],
                            tiles.leftSegments[row], p[i][j]);
    }
  shareScores(tiles, p);
  addProduct<T>(tiles, shape, rows.dout, part, dv);
  multiplyRows<T>(tiles, shape, rows.v, rows.dout, ds);
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i)
    QLORA_UNROLL
    for (int j = 0; j < kSide; ++j)
      ds[i][j] =
          scoreGradient(shape, rows, rows.q.first + threadColumn() + 16 * j,
                        p[i][j], ds[i][j]);
  shareScores(tiles, ds);
  addProduct<T>(tiles, shape, rows.q, part, dk);
}

/// A block is 64 keys of one head of keys, with all heads that share it.
template <typename T>
QLORA_DEVICE void attentionGradKeys(const qlora_cuda_args &args,
                                    AttentionTiles &tiles) {
  AttentionShape shape = AttentionShape::of(args, 13);
  const AttentionPlace at =
      placeOf(shape, shape.keyHeads, /*isReversed=*/false);
  const int64_t group = shape.heads / shape.keyHeads;
  const int64_t firstKey = at.tile * kTile;
  int64_t endTile = tileCount(shape);
  if (shape.window != 0) {
    const int64_t reached = (firstKey + kTile + shape.window - 2) / kTile + 1;
    endTile = reached < endTile ? reached : endTile;
  }
  AttentionSum dk, dv;
  clearSum(dk);
  clearSum(dv);
  stageSegments(tiles.leftSegments, shape, firstKey);
  for (int64_t member = 0; member < group; ++member)
    for (int64_t tile = at.tile; tile < endTile; ++tile) {
      stageSegments(tiles.rightSegments, shape, tile * kTile);
      __syncthreads();
      if (mayMeet(tiles, shape))
        addQueries<T>(tiles, shape,
                      gradientRows(args, shape, at.batch,
                                   at.head * group + member, tile * kTile,
                                   firstKey),
                      at.part, dk, dv);
      __syncthreads();
    }
  const float ones[kSide] = {1, 1, 1, 1};
  storeSum<T>(dk, shape, args.buffers[8],
              rowsOf(shape, args.buffers[8], args.constants[11], at.batch,
                     at.head, firstKey),
              at.part, ones);
  storeSum<T>(dv, shape, args.buffers[9],
              rowsOf(shape, args.buffers[9], args.constants[12], at.batch,
                     at.head, firstKey),
              at.part, ones);
}

/// One tile of keys for a block of queries: the left side are the queries.
template <typename T>
QLORA_DEVICE void addKeys(AttentionTiles &tiles, const AttentionShape &shape,
                          const GradientRows &rows, int64_t part,
                          AttentionSum &dq) {
  float p[kSide][kSide], ds[kSide][kSide];
  multiplyRows<T>(tiles, shape, rows.q, rows.k, p);
  multiplyRows<T>(tiles, shape, rows.dout, rows.v, ds);
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i)
    QLORA_UNROLL
    for (int j = 0; j < kSide; ++j) {
      const int row = threadRow() * kSide + i;
      const int column = threadColumn() + 16 * j;
      const int64_t query = rows.q.first + row;
      const float probable = probability(
          shape, rows, query, rows.k.first + column, tiles.leftSegments[row],
          tiles.rightSegments[column], p[i][j]);
      ds[i][j] = scoreGradient(shape, rows, query, probable, ds[i][j]);
    }
  shareScores(tiles, ds);
  addProduct<T>(tiles, shape, rows.k, part, dq);
}

template <typename T>
QLORA_DEVICE void attentionGradQueries(const qlora_cuda_args &args,
                                       AttentionTiles &tiles) {
  AttentionShape shape = AttentionShape::of(args, 13);
  const AttentionPlace at =
      placeOf(shape, shape.heads, /*isReversed=*/true);
  const int64_t firstQuery = at.tile * kTile;
  AttentionSum dq;
  clearSum(dq);
  stageSegments(tiles.leftSegments, shape, firstQuery);
  for (int64_t tile = firstKeyTile(shape, at.tile); tile <= at.tile; ++tile) {
    stageSegments(tiles.rightSegments, shape, tile * kTile);
    __syncthreads();
    if (mayMeet(tiles, shape))
      addKeys<T>(tiles, shape,
                 gradientRows(args, shape, at.batch, at.head, firstQuery,
                              tile * kTile),
                 at.part, dq);
    __syncthreads();
  }
  const float ones[kSide] = {1, 1, 1, 1};
  storeSum<T>(dq, shape, args.buffers[7],
              rowsOf(shape, args.buffers[7], args.constants[10], at.batch,
                     at.head, firstQuery),
              at.part, ones);
}

// Symbols ---------------------------------------------------------------------

#define QLORA_ATTENTION_KERNEL(Symbol, Function, T, ...)                       \
  QLORA_CUDA_KERNEL(kAttentionThreads __VA_OPT__(, ) __VA_ARGS__)              \
  Symbol##_##T(const __grid_constant__ qlora_cuda_args args) {                 \
    __shared__ AttentionTiles tiles;                                           \
    Function<qlora_##T>(args, tiles);                                          \
  }
// The gradients need more registers than two blocks a processor leave.
#define QLORA_ATTENTION(T)                                                     \
  QLORA_ATTENTION_KERNEL(qlora_attention, attention, T)                        \
  QLORA_ATTENTION_KERNEL(qlora_attention_grad_keys, attentionGradKeys, T, 1)   \
  QLORA_ATTENTION_KERNEL(qlora_attention_grad_queries, attentionGradQueries,   \
                         T, 1)
QLORA_ATTENTION(f32)
QLORA_ATTENTION(bf16)

QLORA_CUDA_KERNEL(kAttentionThreads)
qlora_attention_delta_f32(const __grid_constant__ qlora_cuda_args args) {
  attentionDelta<qlora_f32>(args);
}
QLORA_CUDA_KERNEL(kAttentionThreads)
qlora_attention_delta_bf16(const __grid_constant__ qlora_cuda_args args) {
  attentionDelta<qlora_bf16>(args);
}
