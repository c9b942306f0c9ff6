// SPDX-License-Identifier: MIT

// Common code of attention and attention_grad: visible keys, rows of a block,
// and addresses. Kernels.def has the ops' buffers and constants.
//
// All kernels use the online softmax (Milakov and Gimelshein, 2018;
// FlashAttention-2, Dao, 2023). Scores S are never in global memory. Gradient:
//
//   P = e^(S - lse)      dV = P^T dO         dP = dO V^T
//   dS = P (dP - delta)  dQ = scale dS K     delta = rowsum(dO O)
//                        dK = scale dS^T Q
//
// With a score cap, dS is also multiplied by 1 - tanh^2. One kernel computes
// delta, a second dK and dV by blocks of keys, a third dQ by blocks of queries.
// They use no atomics: one thread computes each sum, in a fixed order. A block
// computes 64 rows of one head, for at most as many dimensions as its width. A
// wider head has several blocks (`part`), and each recomputes the scores.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_ATTENTION_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_ATTENTION_CUH

#include "runtime/Kernels/Cuda/Device/Common.cuh"

constexpr int kTile = 64; ///< rows of a block's result

/// Extents are at most 2^24; products of two extents use 64 bits.
struct AttentionShape {
  int length, heads, keyHeads, dim;
  int window; ///< 0 if it masks nothing
  float scale, cap;
  const int32_t *segments; ///< of the batch; after placeOf(), of a sequence

  /// Reads the constants. `window` is the index of the op's constant `window`;
  /// scale and cap follow it.
  QLORA_DEVICE AttentionShape of(const qlora_cuda_args &args, int window) {
    const int64_t *c = args.constants;
    return {int(c[1]),
            int(c[2]),
            int(c[3]),
            int(c[4]),
            c[window] < c[1] ? int(c[window]) : 0,
            float(__builtin_bit_cast(double, c[window + 1])),
            float(__builtin_bit_cast(double, c[window + 2])),
            static_cast<const int32_t *>(args.buffers[3])};
  }

  /// Returns the score for a dot product of query and key.
  __device__ float score(float product) const {
    const float score = product * scale;
    return cap == 0 ? score : cap * tanhf(score / cap);
  }
  /// Returns d(capped score) / d(uncapped score).
  __device__ float slope(float score) const {
    const float t = cap == 0 ? 0.0f : score / cap;
    return 1.0f - t * t;
  }

  __device__ bool sees(int query, int key, int32_t querySegment,
                       int32_t keySegment) const {
    if (key > query || query >= length)
      return false;
    if (window != 0 && query - key >= window)
      return false;
    return !segments || (querySegment != 0 && querySegment == keySegment);
  }
};

/// One head of a [B, T, heads * dim] matrix, from row `first` on.
struct AttentionRows {
  const void *data;
  int64_t offset, ld;
  int first;
  __device__ AttentionRows from(int token) const {
    return {data, offset, ld, token};
  }
};

QLORA_DEVICE AttentionRows rowsOf(const AttentionShape &shape, const void *data,
                                  int64_t ld, int64_t batch, int64_t head,
                                  int first) {
  return {data, batch * shape.length * ld + head * shape.dim, ld, first};
}

/// The 64 rows, head and dimensions that a block computes.
struct AttentionPlace {
  int head, batch, part;
  int first; ///< index of the first row
};

/// Returns the place of this block, for parts of `width` dimensions. Blocks
/// of the last queries or first keys come first, because they have the most
/// work. Advances shape.segments to the block's sequence.
QLORA_DEVICE AttentionPlace placeOf(AttentionShape &shape, int heads, int width,
                                    bool isReversed) {
  const int parts = (shape.dim + width - 1) / width;
  const int tiles = (shape.length + kTile - 1) / kTile;
  const int batches = int(gridDim.x) / (tiles * heads * parts);
  int index = int(blockIdx.x);
  AttentionPlace place;
  place.part = index % parts;
  index /= parts;
  place.head = index % heads;
  index /= heads;
  place.batch = index % batches;
  const int tile = index / batches;
  place.first = (isReversed ? tiles - 1 - tile : tile) * kTile;
  if (shape.segments)
    shape.segments += int64_t(place.batch) * shape.length;
  return place;
}

/// The tiles [begin, end) that a block processes.
struct TileRange {
  int begin, end;
};

/// Returns the tiles of `columns` keys that a block's queries may see.
QLORA_DEVICE TileRange keyTiles(const AttentionShape &shape, int firstQuery,
                                int columns) {
  const int last = firstQuery + kTile - 1;
  const int first = shape.window == 0 ? 0 : firstQuery - shape.window + 1;
  return {first < 0 ? 0 : first / columns,
          (last < shape.length ? last : shape.length - 1) / columns + 1};
}

/// Returns the tiles of `columns` queries that may see a block's keys.
QLORA_DEVICE TileRange queryTiles(const AttentionShape &shape, int firstKey,
                                  int columns) {
  const int last = firstKey + kTile - 1 + shape.window - 1;
  const bool isCut = shape.window != 0 && last < shape.length;
  return {firstKey / columns, (isCut ? last : shape.length - 1) / columns + 1};
}

/// Returns the key head of a query head.
QLORA_DEVICE int keyHeadOf(const AttentionShape &shape, int head) {
  return head / (shape.heads / shape.keyHeads);
}

/// Initial softmax state of a query: empty, or its head's sink (operand 6).
struct AttentionSink {
  float maximum, sum;
};

QLORA_DEVICE AttentionSink sinkOf(const qlora_cuda_args &args,
                                  const AttentionShape &shape, int head,
                                  int query) {
  const bool isThere = args.buffers[6] && query < shape.length &&
                       (!shape.segments || shape.segments[query] != 0);
  return {isThere ? qlora_load_f32(args.buffers[6], head)
                  : qlora_from_bits(0xff800000u),
          isThere ? 1.0f : 0.0f};
}

/// Operands of the gradient kernels for one query head.
struct GradientRows {
  AttentionRows q, k, v, dout;
  const float *lse, *delta; ///< rows of this head and sequence
};

QLORA_DEVICE GradientRows gradientRows(const qlora_cuda_args &args,
                                       const AttentionShape &shape,
                                       int64_t batch, int64_t head,
                                       int64_t keyHead, int firstQuery,
                                       int firstKey) {
  const int64_t line = (batch * shape.heads + head) * shape.length;
  const int64_t *c = args.constants;
  return {rowsOf(shape, args.buffers[0], c[5], batch, head, firstQuery),
          rowsOf(shape, args.buffers[1], c[6], batch, keyHead, firstKey),
          rowsOf(shape, args.buffers[2], c[7], batch, keyHead, firstKey),
          rowsOf(shape, args.buffers[6], c[9], batch, head, firstQuery),
          static_cast<const float *>(args.buffers[5]) + line,
          static_cast<const float *>(args.buffers[10]) + line};
}

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_ATTENTION_CUH
