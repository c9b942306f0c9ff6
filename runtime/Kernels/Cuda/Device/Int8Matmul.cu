// SPDX-License-Identifier: MIT

// int8_matmul (Math/Int8Matmul.h). Kernels.def lists buffers and constants.
// More constants follow: the byte offsets of codes, scales and outlier marks in
// the workspace, and the byte offset of W's scales in W.

#include "runtime/Kernels/Cuda/Device/Common.cuh"
#include "runtime/Kernels/Math/Int8Matmul.h"

constexpr int kInt8Threads = 256;

/// Accessors for the op's constants and workspace.
struct Int8Case {
  const int64_t *c;
  void *workspace;
  const void *w;

  QLORA_DEVICE Int8Case of(const qlora_cuda_args &args) {
    return {args.constants, args.buffers[3], args.buffers[1]};
  }
  __device__ int64_t m() const { return c[0]; }
  __device__ int64_t n() const { return c[1]; }
  __device__ int64_t k() const { return c[2]; }
  __device__ uint32_t outlier() const {
    return qlora_outlier_bits(__builtin_bit_cast(double, c[7]));
  }
  __device__ int8_t *codes() const {
    return qlora_at<int8_t>(workspace, c[10]);
  }
  __device__ float *absmax() const {
    return reinterpret_cast<float *>(qlora_at<uint8_t>(workspace, c[11]));
  }
  __device__ int32_t *marks() const {
    return reinterpret_cast<int32_t *>(qlora_at<uint8_t>(workspace, c[12]));
  }
  __device__ const float *scales() const {
    return reinterpret_cast<const float *>(qlora_at<uint8_t>(w, c[13]));
  }
};

QLORA_DEVICE void clearMarks(const qlora_cuda_args &args) {
  const Int8Case op = Int8Case::of(args);
  const int64_t i = int64_t(blockIdx.x) * kInt8Threads + threadIdx.x;
  if (i < op.k())
    op.marks()[i] = 0;
}
QLORA_CUDA_SYMBOL(kInt8Threads, qlora_int8_clear, clearMarks)

/// Rounds a row of a to integers and marks outlier columns; one block per row.
/// Blocks that mark the same column write the same value.
template <typename A> QLORA_DEVICE void roundRow(const qlora_cuda_args &args) {
  const Int8Case op = Int8Case::of(args);
  const int64_t row = blockIdx.x, k = op.k();
  const uint32_t outlier = op.outlier();
  const auto load = [&](int64_t i) {
    return qlora_round_f16(A::load(args.buffers[0], row * op.c[3] + i));
  };
  const auto isOutlier = [&](float x) {
    return qlora_is_outlier(qlora_to_bits(qlora_abs(x)), outlier);
  };
  float most = 0;
  for (int64_t i = threadIdx.x; i < k; i += kInt8Threads) {
    const float x = load(i);
    if (isOutlier(x))
      op.marks()[i] = 1;
    else
      most = qlora_maximum(most, qlora_abs(x));
  }
  const float absmax = qlora_block_max(most);
  const float inverse = qlora_int8_inverse(absmax);
  for (int64_t i = threadIdx.x; i < k; i += kInt8Threads)
    op.codes()[row * k + i] = int8_t(qlora_int8_code(load(i), inverse));
  if (threadIdx.x == 0)
    op.absmax()[row] = absmax;
}
QLORA_CUDA_SYMBOL(kInt8Threads, qlora_int8_rows_f32, roundRow<qlora_f32>)
QLORA_CUDA_SYMBOL(kInt8Threads, qlora_int8_rows_bf16, roundRow<qlora_bf16>)

/// Rows and columns of a tile of c, and the depth per step. Matmul.cpp computes
/// the grid from it. A thread computes kInt8Sums elements of c.
constexpr int kInt8Tile = 32;
constexpr int kInt8Sums = kInt8Tile * kInt8Tile / kInt8Threads;
constexpr int kInt8Lines = kInt8Threads / kInt8Tile;

struct Int8Tiles {
  int8_t a[kInt8Tile][kInt8Tile + 4], w[kInt8Tile][kInt8Tile + 4];
  int32_t marks[kInt8Tile];
};

/// Adds the contribution of an outlier column: unrounded a times decoded W.
template <typename A>
QLORA_DEVICE void addOutlier(const qlora_cuda_args &args, const Int8Case &op,
                             int64_t row, int64_t column, int64_t at,
                             float (&extra)[kInt8Sums]) {
  if (column >= op.n())
    return;
  typename A::storage rounded;
  A::store(&rounded, 0,
           qlora_int8_weight(*qlora_at<int8_t>(op.w, column * op.k() + at),
                             op.scales()[column]));
  const float weight = A::load(&rounded, 0);
  QLORA_UNROLL
  for (int s = 0; s < kInt8Sums; ++s)
    if (const int64_t r = row + s * kInt8Lines; r < op.m())
      extra[s] = __fadd_rn(
          extra[s],
          __fmul_rn(A::load(args.buffers[0], r * op.c[3] + at), weight));
}

/// Returns `value` rounded to type A.
template <typename A> QLORA_DEVICE float rounded(float value) {
  typename A::storage stored;
  A::store(&stored, 0, value);
  return A::load(&stored, 0);
}

template <typename A, typename C>
QLORA_DEVICE void int8Matmul(const qlora_cuda_args &args, Int8Tiles &tiles) {
  const Int8Case op = Int8Case::of(args);
  const int64_t across = (op.n() + kInt8Tile - 1) / kInt8Tile;
  const int64_t top = blockIdx.x / across * kInt8Tile;
  const int64_t left = blockIdx.x % across * kInt8Tile;
  const int lane = int(threadIdx.x) % kInt8Tile;
  const int line = int(threadIdx.x) / kInt8Tile;
  const int64_t column = left + lane;
  int32_t sums[kInt8Sums] = {};
  float extra[kInt8Sums] = {};
  for (int64_t depth = 0; depth < op.k(); depth += kInt8Tile) {
    const int64_t at = depth + lane;
    const bool isIn = at < op.k();
    const int32_t mark = isIn ? op.marks()[at] : 0;
    if (line == 0)
      tiles.marks[lane] = mark;
    for (int i = line; i < kInt8Tile; i += kInt8Lines) {
      tiles.a[i][lane] = isIn && mark == 0 && top + i < op.m()
                             ? op.codes()[(top + i) * op.k() + at]
                             : int8_t(0);
      tiles.w[i][lane] = isIn && left + i < op.n()
                             ? *qlora_at<int8_t>(op.w, (left + i) * op.k() + at)
                             : int8_t(0);
    }
    __syncthreads();
    QLORA_ROLL
    for (int i = 0; i < kInt8Tile; ++i) {
      QLORA_UNROLL
      for (int s = 0; s < kInt8Sums; ++s)
        sums[s] += int32_t(tiles.a[line + s * kInt8Lines][i]) *
                   int32_t(tiles.w[lane][i]);
      if (tiles.marks[i] != 0)
        addOutlier<A>(args, op, top + line, column, depth + i, extra);
    }
    __syncthreads();
  }
  const float alpha = float(__builtin_bit_cast(double, op.c[8]));
  const float beta = float(__builtin_bit_cast(double, op.c[9]));
  for (int s = 0; s < kInt8Sums; ++s) {
    const int64_t row = top + line + s * kInt8Lines;
    if (row >= op.m() || column >= op.n())
      continue;
    const float whole = rounded<A>(
        qlora_int8_number(sums[s], op.absmax()[row], op.scales()[column]));
    const int64_t index = row * op.c[4] + column;
    const float before =
        beta == 0 ? 0 : __fmul_rn(beta, C::load(args.buffers[2], index));
    C::store(args.buffers[2], index,
             __fadd_rn(__fmul_rn(alpha, __fadd_rn(whole, extra[s])), before));
  }
}

#define QLORA_INT8_MATMUL(A, C)                                                \
  QLORA_CUDA_KERNEL(kInt8Threads)                                              \
  qlora_int8_matmul_##A##_##C(const __grid_constant__ qlora_cuda_args args) {  \
    __shared__ Int8Tiles tiles;                                                \
    int8Matmul<qlora_##A, qlora_##C>(args, tiles);                             \
  }
QLORA_INT8_MATMUL(f32, f32)
QLORA_INT8_MATMUL(f32, bf16)
QLORA_INT8_MATMUL(bf16, f32)
QLORA_INT8_MATMUL(bf16, bf16)
