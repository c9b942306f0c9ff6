// SPDX-License-Identifier: MIT

// Attention in bf16 on tensor cores. A block has 64 rows (the left side of
// matmuls), 16 for each of its four warps. All warps process the same tiles of
// the right side: keys for a block of queries, or queries for a block of keys.
// Both sides are in shared memory, scores and f32 sums in registers. P and dS
// are rounded to bf16, because they are left sides of a second matmul.
//
// Each kernel is compiled for a width. kFast accepts heads of up to that many
// dimensions, with rows aligned to 16 bytes, and pads them with zeros. kAny
// accepts all heads, loads elements one by one, and stages wider heads in
// sections: scores are summed over all sections, and a block computes one part.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_ATTENTIONWARPS_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_ATTENTIONWARPS_CUH

#include "runtime/Kernels/Cuda/Device/Attention.cuh"
#include "runtime/Kernels/Cuda/Device/WarpTiles.cuh"

enum AttentionKind { kFast, kAny };

constexpr int kWarpRows = 16;
constexpr int kWarpThreads = kTile / kWarpRows * kQloraWarp; // per block
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

QLORA_DEVICE float attentionNone() { return qlora_from_bits(0xff800000u); }
QLORA_DEVICE int warpLane() { return int(threadIdx.x) % kQloraWarp; }
QLORA_DEVICE int warpFirstRow() {
  return int(threadIdx.x) / kQloraWarp * kWarpRows;
}

// Tiles in shared memory -----------------------------------------------------

/// Returns the first `count` of eight bf16, followed by zeros.
QLORA_DEVICE qlora_words loadHalves(const uint16_t *from, int count) {
  qlora_words words = {};
  QLORA_UNROLL
  for (int i = 0; i < 8; ++i)
    if (i < count)
      words.word[i / 2] |= uint32_t(from[i]) << i % 2 * 16;
  return words;
}

/// Begins to copy rows from rows.first on, dimensions from `dimension` on, with
/// zeros outside. The caller must commit the copies and wait for them.
template <AttentionKind Kind, int Rows, int Width>
QLORA_DEVICE void stage(HalfTile<Rows, Width> &tile,
                        const AttentionShape &shape, const AttentionRows &rows,
                        int dimension) {
  constexpr int kWords = Width / 8, kStep = kWarpThreads / kWords;
  static_assert(kStep % 8 == 0 && Rows % kStep == 0);
  const int thread = int(qlora_here(threadIdx.x));
  const int word = thread % kWords, begin = thread / kWords;
  const int missing = shape.dim - dimension - 8 * word;
  const int count = missing < 0 ? 0 : missing < 8 ? missing : 8;
  const uint16_t *base = qlora_at<uint16_t>(rows.data, rows.offset);
  const uint16_t *from =
      base + (rows.first + begin) * rows.ld + dimension + 8 * word;
  if (Kind == kFast) {
    const qlora_shared to = qlora_shared_address(&tile.at(begin, word));
    QLORA_UNROLL
    for (int i = 0; i < Rows / kStep; ++i, from += kStep * rows.ld) {
      const int token = rows.first + begin + i * kStep;
      const bool exists = count && token < shape.length;
      qlora_copy_async(to + i * kStep * 2 * Width, exists ? from : base,
                       exists);
    }
  } else {
    QLORA_ROLL
    for (int row = begin; row < Rows; row += kStep, from += kStep * rows.ld)
      tile.at(row, word) =
          loadHalves(from, rows.first + row < shape.length ? count : 0);
  }
}

// Matmuls --------------------------------------------------------------------

/// WarpSums in bf16 as a left operand: part k has columns 16 k to 16 k + 15.
template <int Columns> struct WarpHalves { qlora_words part[Columns / 16]; };

template <int Columns>
QLORA_DEVICE WarpHalves<Columns> rounded(const WarpSums<Columns> &sums) {
  WarpHalves<Columns> halves;
  QLORA_UNROLL
  for (int k = 0; k < Columns / 16; ++k)
    QLORA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const qlora_sums &from = sums.tile[2 * k + i / 2];
      halves.part[k].word[i] =
          qlora_round_pair(from.value[i % 2 * 2], from.value[i % 2 * 2 + 1]);
    }
  return halves;
}

/// products += (left rows of the warp) . (right rows)^T.
template <int Columns, int Width>
QLORA_DEVICE void multiplyRows(const HalfTile<kTile, Width> &left,
                               const HalfTile<Columns, Width> &right,
                               WarpSums<Columns> &products) {
  constexpr int kRowBytes = 2 * Width;
  const qlora_shared leftRow = left.laneRow(warpFirstRow());
  const qlora_shared rightRow = right.laneRow(0);
  // Unroll by 2 only: k indexes no registers, and loads for more values of k
  // would need too many registers.
  QLORA_UNROLL_2
  for (int k = 0; k < Width / 16; ++k) {
    const qlora_words a = qlora_load_matrices(leftRow ^ 32 * k);
    QLORA_UNROLL
    for (int j = 0; j < Columns / 16; ++j) {
      const qlora_words b =
          qlora_load_matrices((rightRow ^ 32 * k) + 16 * j * kRowBytes);
      qlora_multiply(products.tile[2 * j], a, b.word[0], b.word[2]);
      qlora_multiply(products.tile[2 * j + 1], a, b.word[1], b.word[3]);
    }
  }
}

/// sums += left [16, Columns] . right [Columns, Width].
template <int Columns, int Width>
QLORA_DEVICE void addProduct(const WarpHalves<Columns> &left,
                             const HalfTile<Columns, Width> &right,
                             WarpSums<Width> &sums) {
  constexpr int kRowBytes = 2 * Width;
  const qlora_shared rightRow = right.laneRow(0);
  QLORA_UNROLL
  for (int k = 0; k < Columns / 16; ++k)
    QLORA_UNROLL
    for (int j = 0; j < Width / 16; ++j) {
      const qlora_words b =
          qlora_load_transposed((rightRow ^ 32 * j) + 16 * k * kRowBytes);
      qlora_multiply(sums.tile[2 * j], left.part[k], b.word[0], b.word[1]);
      qlora_multiply(sums.tile[2 * j + 1], left.part[k], b.word[2], b.word[3]);
    }
}

/// Stores row lane / 4 + 8 i of the warp times factor[i], if in the matrix.
template <int Width>
QLORA_DEVICE void
storeSums(const WarpSums<Width> &sums, const AttentionShape &shape, void *out,
          const AttentionRows &rows, int dimension, const float (&factor)[2]) {
  const int first = rows.first + warpFirstRow() + warpLane() / 4;
  QLORA_UNROLL
  for (int j = 0; j < WarpSums<Width>::kCount; ++j)
    QLORA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = first + i / 2 * 8;
      const int at = dimension + 8 * j + warpLane() % 4 * 2 + i % 2;
      if (token < shape.length && at < shape.dim)
        qlora_store_bf16(out, rows.offset + token * rows.ld + at,
                         factor[i / 2] * sums.tile[j].value[i]);
    }
}

// Visibility -----------------------------------------------------------------

constexpr int32_t kMixed = -1;

/// Range of the segment ids of some rows, except padding (id 0).
struct SegmentRange {
  int32_t least, most;
  int32_t only; ///< the segment of all rows; kMixed if they differ
};

/// Returns the segments of rows [first, first + count), equal in all lanes.
QLORA_DEVICE SegmentRange segmentRange(const AttentionShape &shape, int first,
                                       int count) {
  if (!shape.segments)
    return {0, 0, 0};
  int32_t least = 0x7fffffff, most = 0, lowest = 0x7fffffff;
  for (int i = warpLane(); i < count; i += kQloraWarp) {
    const int32_t segment =
        first + i < shape.length ? shape.segments[first + i] : 0;
    least = segment != 0 && segment < least ? segment : least;
    most = segment > most ? segment : most;
    lowest = segment < lowest ? segment : lowest;
  }
  for (int offset = kQloraWarp / 2; offset > 0; offset /= 2) {
    const int32_t otherLeast = __shfl_xor_sync(0xffffffffu, least, offset);
    const int32_t otherMost = __shfl_xor_sync(0xffffffffu, most, offset);
    const int32_t otherLowest = __shfl_xor_sync(0xffffffffu, lowest, offset);
    least = otherLeast < least ? otherLeast : least;
    most = otherMost > most ? otherMost : most;
    lowest = otherLowest < lowest ? otherLowest : lowest;
  }
  return {least, most, lowest == most && lowest != 0 ? most : kMixed};
}

/// A tile of the right side. After the last tile, `index` is the range's end.
struct TileStep {
  int index;
  int32_t segment; ///< SegmentRange::only
};

/// Returns the first tile of [index, end) that overlaps the segments of `rows`.
template <int Columns>
QLORA_DEVICE TileStep nextTile(const AttentionShape &shape,
                               const SegmentRange &rows, int index, int end) {
  for (; index < end; ++index) {
    const SegmentRange tile = segmentRange(shape, index * Columns, Columns);
    if (rows.least <= tile.most && tile.least <= rows.most)
      return {index, tile.only};
  }
  return {end, kMixed};
}

/// Position of the calling lane's scores in its warp's tile. Rows are queries
/// and columns are keys, or vice versa.
template <int Columns, bool AreRowsQueries> struct ScorePlace {
  int ownRow, ownColumn; ///< place of value 0 of tile 0
  bool isFull;           ///< every query sees every key of the tile

  /// firstRow is the block's first row, firstColumn the tile's first column.
  QLORA_DEVICE ScorePlace of(const AttentionShape &shape, int firstRow,
                             const SegmentRange &rows, int firstColumn,
                             const TileStep &tile) {
    const int thread = int(qlora_here(threadIdx.x)), lane = thread % kQloraWarp;
    firstRow += thread / kQloraWarp * kWarpRows;
    const int query = AreRowsQueries ? firstRow : firstColumn;
    const int key = AreRowsQueries ? firstColumn : firstRow;
    const int lastQuery = query + (AreRowsQueries ? kWarpRows : Columns) - 1;
    const int lastKey = key + (AreRowsQueries ? Columns : kWarpRows) - 1;
    return {firstRow + lane / 4, firstColumn + lane % 4 * 2,
            lastKey <= query && lastQuery < shape.length &&
                (shape.window == 0 || lastQuery - key < shape.window) &&
                rows.only != kMixed && rows.only == tile.segment};
  }

  /// Return the row and the column of value i of tile j.
  __device__ int row(int i) const { return ownRow + i / 2 * 8; }
  __device__ int column(int j, int i) const {
    return ownColumn + 8 * j + i % 2;
  }
  __device__ int query(int j, int i) const {
    return AreRowsQueries ? row(i) : column(j, i);
  }
};

QLORA_DEVICE int32_t segmentAt(const AttentionShape &shape, int token) {
  return shape.segments && token < shape.length ? shape.segments[token] : 0;
}

/// Returns cap * tanh(scale * product / cap) as a base-2 exponent. tanh x is 1
/// - 2 / (1 + e^2x); the error is 2^-22 of the cap.
QLORA_DEVICE float cappedScore(const AttentionShape &shape, float product) {
  const float cap = shape.cap * kLog2E;
  const float power =
      qlora_exp2(product * __fdividef(2 * kLog2E * shape.scale, shape.cap));
  return cap - __fdividef(2 * cap, 1.0f + power);
}

/// Replaces dot products by scores as base-2 exponents. A score is minus
/// infinity if the query does not see the key.
template <int Columns, bool AreRowsQueries>
QLORA_DEVICE void scaleAndHide(const AttentionShape &shape,
                               const ScorePlace<Columns, AreRowsQueries> &place,
                               WarpSums<Columns> &scores) {
  QLORA_UNROLL
  for (int j = 0; j < WarpSums<Columns>::kCount; ++j)
    QLORA_UNROLL
    for (int i = 0; i < 4; ++i) {
      float &score = scores.tile[j].value[i];
      score = shape.cap == 0 ? score * (shape.scale * kLog2E)
                             : cappedScore(shape, score);
    }
  if (place.isFull)
    return;
  const int32_t rowSegments[2] = {segmentAt(shape, place.row(0)),
                                  segmentAt(shape, place.row(2))};
  QLORA_UNROLL
  for (int j = 0; j < WarpSums<Columns>::kCount; ++j) {
    const int32_t columnSegments[2] = {segmentAt(shape, place.column(j, 0)),
                                       segmentAt(shape, place.column(j, 1))};
    QLORA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = place.row(i), column = place.column(j, i);
      const int32_t ofRow = rowSegments[i / 2],
                    ofColumn = columnSegments[i % 2];
      const bool isSeen = AreRowsQueries
                              ? shape.sees(row, column, ofRow, ofColumn)
                              : shape.sees(column, row, ofColumn, ofRow);
      if (!isSeen)
        scores.tile[j].value[i] = attentionNone();
    }
  }
}

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_ATTENTIONWARPS_CUH
