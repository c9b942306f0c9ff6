// SPDX-License-Identifier: MIT

// grouped_matmul in bf16 on tensor cores, for groups with stacked matrices and
// rows aligned to 16 bytes. Kernels.def lists buffers and constants; w is bf16.
//
// A block computes 64 rows of a group by 128 columns, in steps of depth 64. It
// copies the next step during the current step. Each of its four warps computes
// 32 rows by 64 columns, so an m16n8k16 loads 192 bytes of shared memory. With
// 48 KiB and 64 registers per thread for sums, two blocks fit on a
// multiprocessor.

#include "runtime/Kernels/Cuda/Device/Groups.cuh"
#include "runtime/Kernels/Cuda/Device/WarpTiles.cuh"

/// Experts.cpp computes the grid from these three constants.
constexpr int kBlockRows = 64, kBlockColumns = 128, kBlockThreads = 128;
constexpr int kBlockDepth = 64;
constexpr int kOwnRows = 32, kOwnColumns = 64; // per warp

/// Operands of one step. w holds rows of the weight for c = a . w^T (forward),
/// and columns for c = a . w (backward).
template <bool IsForward> struct GroupedTiles {
  HalfTile<kBlockRows, kBlockDepth> a;
  HalfTile<IsForward ? kBlockColumns : kBlockDepth,
           IsForward ? kBlockDepth : kBlockColumns>
      w;
};

/// A submatrix that starts at `data`. Its rows are multiples of 16 bytes.
struct HalfRows {
  const uint16_t *data;
  int64_t ld;
  int64_t rows, columns; ///< of the submatrix; empty if below 1
};

/// Begins to copy a tile; fills it with zeros outside of `from`. `base` is any
/// valid address that is aligned to 16 bytes.
template <int Rows, int Width>
QLORA_DEVICE void stage(HalfTile<Rows, Width> &tile, const HalfRows &from,
                        const uint16_t *base) {
  constexpr int kWords = Width / 8, kStep = kBlockThreads / kWords;
  const int word = int(threadIdx.x) % kWords;
  QLORA_UNROLL
  for (int i = 0; i < Rows / kStep; ++i) {
    const int row = int(threadIdx.x) / kWords + i * kStep;
    const bool exists = row < from.rows && 8 * word < from.columns;
    qlora_copy_async(qlora_shared_address(&tile.at(row, word)),
                     exists ? from.data + row * from.ld + 8 * word : base,
                     exists);
  }
}

/// Return the first row and column of the warp's part of the block's result.
QLORA_DEVICE int ownRow() {
  return int(threadIdx.x) / kQloraWarp / 2 * kOwnRows;
}
QLORA_DEVICE int ownColumn() {
  return int(threadIdx.x) / kQloraWarp % 2 * kOwnColumns;
}

using GroupedSums = WarpSums<kOwnColumns>[kOwnRows / 16];

template <bool IsForward>
QLORA_DEVICE void multiply(const GroupedTiles<IsForward> &tiles,
                           GroupedSums &sums) {
  constexpr int kRowBytes = 2 * (IsForward ? kBlockDepth : kBlockColumns);
  const qlora_shared rows[2] = {tiles.a.laneRow(ownRow()),
                                tiles.a.laneRow(ownRow() + 16)};
  const qlora_shared weights = tiles.w.laneRow(IsForward ? ownColumn() : 0);
  QLORA_UNROLL_2
  for (int k = 0; k < kBlockDepth / 16; ++k) {
    const qlora_words a[2] = {qlora_load_matrices(rows[0] ^ 32 * k),
                              qlora_load_matrices(rows[1] ^ 32 * k)};
    QLORA_UNROLL
    for (int j = 0; j < kOwnColumns / 16; ++j) {
      // The B operand of the first 8 columns is words 0 and 2 in the forward
      // pass, words 0 and 1 in the backward pass.
      const qlora_words w =
          IsForward
              ? qlora_load_matrices((weights ^ 32 * k) + 16 * j * kRowBytes)
              : qlora_load_transposed((weights ^ 32 * (ownColumn() / 16 + j)) +
                                      16 * k * kRowBytes);
      QLORA_UNROLL
      for (int i = 0; i < 2; ++i) {
        qlora_multiply(sums[i].tile[2 * j], a[i], w.word[0],
                       w.word[IsForward ? 2 : 1]);
        qlora_multiply(sums[i].tile[2 * j + 1], a[i], w.word[IsForward ? 1 : 2],
                       w.word[3]);
      }
    }
  }
}

/// c = alpha * sums + beta * c, for columns [left, n).
QLORA_DEVICE void store(const qlora_cuda_args &args, const GroupedSums &sums,
                        const GroupRows &mine, int64_t left, int64_t n) {
  const int64_t *c = args.constants;
  const float alpha = float(__builtin_bit_cast(double, c[11]));
  const float beta = float(__builtin_bit_cast(double, c[12]));
  const int lane = int(threadIdx.x) % kQloraWarp;
  const int64_t first = mine.first + ownRow() + lane / 4;
  left += ownColumn() + lane % 4 * 2;
  QLORA_UNROLL
  for (int part = 0; part < kOwnRows / 16; ++part)
    QLORA_UNROLL
    for (int j = 0; j < WarpSums<kOwnColumns>::kCount; ++j)
      QLORA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int64_t row = first + 16 * part + i / 2 * 8;
        const int64_t column = left + 8 * j + i % 2;
        if (row >= mine.end || column >= n)
          continue;
        const int64_t at = row * c[5] + column;
        const float before =
            beta == 0 ? 0 : beta * qlora_load_bf16(args.buffers[3], at);
        qlora_store_bf16(args.buffers[3], at,
                         alpha * sums[part].tile[j].value[i] + before);
      }
}

template <bool IsForward>
QLORA_DEVICE void groupedMatmul(const qlora_cuda_args &args,
                                GroupedTiles<IsForward> (&tiles)[2]) {
  const int64_t *c = args.constants;
  const int64_t rows = c[2] / c[1], columns = c[3]; // per group
  const int64_t n = IsForward ? rows : columns, k = IsForward ? columns : rows;
  const int64_t across = (n + kBlockColumns - 1) / kBlockColumns;
  const GroupRows mine = groupRowsOf<kBlockRows>(args.buffers[2], c[1], c[0],
                                                 blockIdx.x / across);
  if (!mine.areAmong(c[0]))
    return;
  const int64_t left = blockIdx.x % across * kBlockColumns;
  const bool isOfGroup = mine.group < c[1];
  const auto *a = qlora_at<uint16_t>(args.buffers[0], 0);
  const auto *w = qlora_at<uint16_t>(args.buffers[1], 0);
  const uint16_t *matrix = w + (isOfGroup ? mine.group * rows * columns : 0);
  const int64_t steps = isOfGroup ? (k + kBlockDepth - 1) / kBlockDepth : 0;
  const auto begin = [&](int64_t step) {
    const int64_t depth = step * kBlockDepth;
    if (step < steps) {
      stage(tiles[step % 2].a,
            {a + mine.first * c[4] + depth, c[4], mine.end - mine.first,
             k - depth},
            a);
      const HalfRows weights = IsForward
                                   ? HalfRows{matrix + left * columns + depth,
                                              columns, n - left, k - depth}
                                   : HalfRows{matrix + depth * columns + left,
                                              columns, k - depth, n - left};
      stage(tiles[step % 2].w, weights, w);
    }
    qlora_commit_copies();
  };
  GroupedSums sums = {};
  begin(0);
  for (int64_t step = 0; step < steps; ++step) {
    begin(step + 1);
    qlora_wait_copies<1>();
    __syncthreads();
    multiply<IsForward>(tiles[step % 2], sums);
    __syncthreads();
  }
  store(args, sums, mine, left, n);
}

#define QLORA_GROUPED_TENSOR(Name, IsForward)                                  \
  QLORA_CUDA_KERNEL(kBlockThreads, 2)                                          \
  qlora_grouped_matmul_##Name(const __grid_constant__ qlora_cuda_args args) {  \
    __shared__ GroupedTiles<IsForward> tiles[2];                               \
    groupedMatmul<IsForward>(args, tiles);                                     \
  }
QLORA_GROUPED_TENSOR(tensor, true)
QLORA_GROUPED_TENSOR(tensor_back, false)
