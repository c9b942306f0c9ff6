// SPDX-License-Identifier: MIT

// Attention in f32: tiles of 64 by 64 scores without tensor cores, which would
// round the operands. Each of a block's 256 threads computes 4 rows by 4
// columns of a tile, and 4 rows by 8 dimensions of the result.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_ATTENTIONTILES_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_ATTENTIONTILES_CUH

#include "runtime/Kernels/Cuda/Device/Attention.cuh"

constexpr int kAttentionThreads = 256; // 16 by 16
constexpr int kDepth = 32;             // dimensions staged at a time
constexpr int kSide = 4;               // kTile / 16: rows of a thread
constexpr int kChunks = 4;             // chunks of kDepth dimensions in a block
constexpr int kWidth = kChunks * kDepth;

/// Shared memory of a block. Odd row strides spread a column over the banks.
struct AttentionTiles {
  float left[kTile][kDepth + 1];
  float right[kTile][kDepth + 1];
  float scores[kTile][kTile + 1];
  int32_t leftSegments[kTile], rightSegments[kTile];
};

QLORA_DEVICE int threadRow() { return int(threadIdx.x) / 16; }
QLORA_DEVICE int threadColumn() { return int(threadIdx.x) % 16; }

/// tile[row][d] := element `dimension` + d of a row; zero outside the matrix.
QLORA_DEVICE void stage(float (&tile)[kTile][kDepth + 1],
                        const AttentionShape &shape, const AttentionRows &rows,
                        int64_t dimension) {
  const int d = int(threadIdx.x) % kDepth;
  for (int row = int(threadIdx.x) / kDepth; row < kTile;
       row += kAttentionThreads / kDepth) {
    const int token = rows.first + row;
    const bool isInside = token < shape.length && dimension + d < shape.dim;
    tile[row][d] =
        isInside ? qlora_load_f32(rows.data,
                                  rows.offset + token * rows.ld + dimension + d)
                 : 0.0f;
  }
}

QLORA_DEVICE void stageSegments(int32_t (&segments)[kTile],
                                const AttentionShape &shape, int first) {
  const int token = first + int(threadIdx.x);
  if (shape.segments && threadIdx.x < kTile)
    segments[threadIdx.x] = token < shape.length ? shape.segments[token] : 0;
}

/// Sets products[i][j] to the dot product of two rows: row 4 threadRow() + i of
/// `left`, and row threadColumn() + 16 j of `right`.
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
    stage(tiles.left, shape, left, dimension);
    stage(tiles.right, shape, right, dimension);
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

/// Copies a thread's scores to shared memory, for addProduct().
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

/// A thread's 4 rows of the result: dimensions threadColumn() + 16 j of each.
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

/// sum += scores in shared memory [64, 64] . rows [64, dimensions of the part].
QLORA_DEVICE void addProduct(AttentionTiles &tiles, const AttentionShape &shape,
                             const AttentionRows &rows, int64_t part,
                             AttentionSum &sum) {
  QLORA_UNROLL
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int64_t dimension = (part * kChunks + chunk) * kDepth;
    if (dimension >= shape.dim)
      break;
    stage(tiles.right, shape, rows, dimension);
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

/// Stores row i of the thread times factor[i], if it is inside the sequence.
QLORA_DEVICE void storeSum(const AttentionSum &sum, const AttentionShape &shape,
                           void *out, const AttentionRows &rows, int64_t part,
                           const float (&factor)[kSide]) {
  QLORA_UNROLL
  for (int i = 0; i < kSide; ++i) {
    const int token = rows.first + threadRow() * kSide + i;
    QLORA_UNROLL
    for (int j = 0; j < 2 * kChunks; ++j) {
      const int64_t dimension = part * kWidth + j * 16 + threadColumn();
      if (token < shape.length && dimension < shape.dim)
        qlora_store_f32(out, rows.offset + token * rows.ld + dimension,
                        factor[i] * sum.value[i][j]);
    }
  }
}

/// Return the maximum and the sum over the 16 threads that share rows.
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

/// Whether the segment ranges of the left and right rows overlap. The segments
/// of both sides must be staged.
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

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_ATTENTIONTILES_CUH
