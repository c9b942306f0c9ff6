// SPDX-License-Identifier: MIT

// Single passes over rows: conversion and copy with other strides, accumulate,
// column_sum, embedding, embedding_grad, clip_norm, length. Kernels.def lists
// buffers and constants; conversion has the constants of copy_rows.

#include "runtime/Kernels/Cuda/Device/Lanes.cuh"

constexpr int kRowThreads = 256;
/// Adjacent elements that a thread loads and stores at once, and the number of
/// such groups per thread. RowKernels.cpp computes the grid from these two.
constexpr int kRowGroup = 8;
constexpr int kRowGroups = 4;

/// A pass over two matrices [rows, columns] with element types X and Y.
template <typename X, typename Y> struct RowWalk {
  int64_t rows, columns, ldx, ldy;
  const X *x;
  Y *y;

  __device__ explicit RowWalk(const qlora_cuda_args &args)
      : rows(args.constants[0]), columns(args.constants[1]),
        ldx(args.constants[2]), ldy(args.constants[3]),
        x(qlora_at<X>(args.buffers[0], 0)), y(qlora_at<Y>(args.buffers[1], 0)) {
  }

  /// Whether groups are aligned to 16 bytes in both matrices.
  __device__ bool isAligned() const {
    const uint64_t begins =
        reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y);
    const uint64_t strides =
        uint64_t(ldx) * sizeof(X) | uint64_t(ldy) * sizeof(Y);
    return (begins | (rows == 1 ? 0 : strides)) % 16 == 0;
  }

  /// Calls whole(x, y) for each complete, aligned group of this block, and
  /// single(x, y) for each element of its other groups. Adjacent threads have
  /// adjacent groups.
  template <typename Whole, typename Single>
  __device__ void forEach(Whole whole, Single single) const {
    const int64_t ofRow = (columns + kRowGroup - 1) / kRowGroup;
    const int64_t count = rows * ofRow;
    const bool isSmall = count < int64_t(1) << 32, isWide = isAligned();
    const int64_t first =
        int64_t(blockIdx.x) * (kRowThreads * kRowGroups) + threadIdx.x;
    QLORA_ROLL
    for (int step = 0; step < kRowGroups; ++step) {
      const int64_t group = first + step * kRowThreads;
      if (group >= count)
        return;
      // Use a 32-bit division if possible: 64 bits are about 20 times slower.
      const int64_t row = rows == 1 ? 0
                          : isSmall ? uint32_t(group) / uint32_t(ofRow)
                                    : group / ofRow;
      const int64_t column = (group - row * ofRow) * kRowGroup;
      const X *from = x + row * ldx + column;
      Y *to = y + row * ldy + column;
      if (isWide && column + kRowGroup <= columns) {
        whole(from, to);
        continue;
      }
      QLORA_ROLL
      for (int64_t i = 0; i < kRowGroup && column + i < columns; ++i)
        single(from + i, to + i);
    }
  }
};

template <typename From, typename To>
QLORA_DEVICE void convert(const qlora_cuda_args &args) {
  using X = typename From::storage;
  using Y = typename To::storage;
  RowWalk<X, Y>(args).forEach(
      [](const X *x, Y *y) {
        qlora_store_lanes<To>(y, 0, qlora_load_lanes<From, kRowGroup>(x, 0));
      },
      [](const X *x, Y *y) { To::store(y, 0, From::load(x, 0)); });
}

#define QLORA_CONVERT(From, To)                                                \
  QLORA_CUDA_SYMBOL(kRowThreads, qlora_convert_##From##_##To,                  \
                    convert<qlora_##From, qlora_##To>)
QLORA_CONVERT(f32, bf16)
QLORA_CONVERT(f32, f16)
QLORA_CONVERT(bf16, f32)
QLORA_CONVERT(bf16, f16)
QLORA_CONVERT(f16, f32)
QLORA_CONVERT(f16, bf16)

template <typename Word> struct alignas(16) CopiedGroup {
  Word word[kRowGroup];
};

template <typename Word>
QLORA_DEVICE void copyRows(const qlora_cuda_args &args) {
  using Group = CopiedGroup<Word>;
  RowWalk<Word, Word>(args).forEach(
      [](const Word *x, Word *y) {
        *reinterpret_cast<Group *>(y) = *reinterpret_cast<const Group *>(x);
      },
      [](const Word *x, Word *y) { *y = *x; });
}

QLORA_CUDA_SYMBOL(kRowThreads, qlora_copy_rows_b16, copyRows<uint16_t>)
QLORA_CUDA_SYMBOL(kRowThreads, qlora_copy_rows_b32, copyRows<uint32_t>)

template <typename XElement, typename YElement>
QLORA_DEVICE void accumulate(const qlora_cuda_args &args) {
  using X = typename XElement::storage;
  using Y = typename YElement::storage;
  RowWalk<X, Y>(args).forEach(
      [](const X *x, Y *y) {
        const auto added = qlora_load_lanes<XElement, kRowGroup>(x, 0);
        auto sum = qlora_load_lanes<YElement, kRowGroup>(y, 0);
        QLORA_UNROLL
        for (int i = 0; i < kRowGroup; ++i)
          sum[i] += added[i];
        qlora_store_lanes<YElement>(y, 0, sum);
      },
      [](const X *x, Y *y) {
        YElement::store(y, 0, YElement::load(y, 0) + XElement::load(x, 0));
      });
}

#define QLORA_ACCUMULATE(X, Y)                                                 \
  QLORA_CUDA_SYMBOL(kRowThreads, qlora_accumulate_##X##_##Y,                   \
                    accumulate<qlora_##X, qlora_##Y>)
QLORA_ACCUMULATE(f32, f32)
QLORA_ACCUMULATE(f32, bf16)
QLORA_ACCUMULATE(bf16, f32)
QLORA_ACCUMULATE(bf16, bf16)

/// A block sums one range of rows in each of 256 columns. Constants: rows,
/// columns, ldx, the number of ranges (partial sums) per column.
template <typename X> QLORA_DEVICE void columnSum(const qlora_cuda_args &args) {
  const int64_t rows = args.constants[0], columns = args.constants[1];
  const int64_t ldx = args.constants[2], partials = args.constants[3];
  const int64_t partial = blockIdx.x % partials;
  const int64_t column = blockIdx.x / partials * kRowThreads + threadIdx.x;
  if (column >= columns)
    return;
  const int64_t end = rows * (partial + 1) / partials;
  float sum = 0;
  for (int64_t row = rows * partial / partials; row < end; ++row)
    sum += X::load(args.buffers[0], row * ldx + column);
  qlora_store_f32(args.buffers[2], partial * columns + column, sum);
}

QLORA_CUDA_SYMBOL(kRowThreads, qlora_column_sum_f32, columnSum<qlora_f32>)
QLORA_CUDA_SYMBOL(kRowThreads, qlora_column_sum_bf16, columnSum<qlora_bf16>)
QLORA_CUDA_SYMBOL(kRowThreads, qlora_column_sum_f16, columnSum<qlora_f16>)

/// Adds the partial sums to out, in order. After columnSum's constants is 1 if
/// the sum overwrites out.
QLORA_CUDA_KERNEL(kRowThreads)
qlora_column_sum_add(const __grid_constant__ qlora_cuda_args args) {
  const int64_t columns = args.constants[1], partials = args.constants[3];
  const int64_t column = int64_t(blockIdx.x) * kRowThreads + threadIdx.x;
  if (column >= columns)
    return;
  float sum = 0;
  for (int64_t partial = 0; partial < partials; ++partial)
    sum += qlora_load_f32(args.buffers[2], partial * columns + column);
  float *out = qlora_at<float>(args.buffers[1], column);
  *out = args.constants[4] ? sum : *out + sum;
}

// Embedding ------------------------------------------------------------------
//
// Token ids were checked when the data was read. An invalid id makes its row
// and the loss NaN, and adds no gradient.

template <typename W, typename Out>
QLORA_DEVICE void embedding(const qlora_cuda_args &args) {
  const int64_t columns = args.constants[1], vocab = args.constants[2];
  const int64_t piece = args.constants[5];
  const int64_t ids = piece ? piece : vocab;
  const int64_t row = blockIdx.x;
  const int64_t id = qlora_load_i32(args.buffers[0], row);
  const int64_t at = id - (piece ? args.step->shard * piece : 0);
  auto *out = qlora_at<typename Out::storage>(args.buffers[2],
                                              row * args.constants[3]);
  if (id < 0 || id >= vocab)
    qlora_fill_row<Out>(out, columns, qlora_from_bits(0x7fc00000u));
  else if (at < 0 || at >= ids)
    qlora_fill_row<Out>(out, columns, 0.0f);
  else if (args.constants[4])
    for (int64_t c = threadIdx.x; c < columns; c += kRowThreads)
      Out::store(out, c, W::load(args.buffers[1], c * ids + at));
  else
    qlora_copy_row<W, Out>(
        qlora_at<typename W::storage>(args.buffers[1], at * columns), out,
        columns);
}

#define QLORA_EMBEDDING(W, Out)                                                \
  QLORA_CUDA_SYMBOL(kRowThreads, qlora_embedding_##W##_##Out,            \
                    embedding<qlora_##W, qlora_##Out>)
QLORA_EMBEDDING(f32, f32)
QLORA_EMBEDDING(f32, bf16)
QLORA_EMBEDDING(bf16, f32)
QLORA_EMBEDDING(bf16, bf16)
QLORA_EMBEDDING(f16, f32)
QLORA_EMBEDDING(f16, bf16)

/// Whether an earlier row has the same id. The result is equal in all threads.
QLORA_DEVICE bool isRepeated(const void *ids, int64_t row, int32_t id) {
  int found = 0;
  for (int64_t other = threadIdx.x; other < row; other += kRowThreads)
    found |= qlora_load_i32(ids, other) == id;
  return __syncthreads_or(found) != 0;
}

/// One block per row. The block of an id's first row adds all rows with that
/// id, in row order.
template <typename DOut>
QLORA_DEVICE void embeddingGrad(const qlora_cuda_args &args,
                                unsigned (&matches)[kRowThreads / 32]) {
  const int64_t rows = args.constants[0], columns = args.constants[1];
  const int64_t vocab = args.constants[2], lddo = args.constants[3];
  const int64_t first = blockIdx.x;
  const int32_t id = qlora_load_i32(args.buffers[0], first);
  if (id < 0 || id >= vocab || id == args.constants[5] ||
      isRepeated(args.buffers[0], first, id))
    return;
  const bool isTransposed = args.constants[4];
  const int64_t perColumn = isTransposed ? vocab : 1;
  float *sum =
      qlora_at<float>(args.buffers[2], isTransposed ? id : id * columns);
  for (int64_t begin = first; begin < rows; begin += kRowThreads) {
    const int64_t mine = begin + threadIdx.x;
    const unsigned ballot = __ballot_sync(
        0xffffffffu,
        mine < rows && qlora_load_i32(args.buffers[0], mine) == id);
    if (threadIdx.x % kQloraWarp == 0)
      matches[threadIdx.x / kQloraWarp] = ballot;
    __syncthreads();
    for (int i = 0; i < kRowThreads; ++i)
      if (matches[i / 32] >> (i % 32) & 1)
        for (int64_t c = threadIdx.x; c < columns; c += kRowThreads)
          sum[c * perColumn] +=
              DOut::load(args.buffers[1], (begin + i) * lddo + c);
    __syncthreads();
  }
}

QLORA_CUDA_KERNEL(kRowThreads)
qlora_embedding_grad_f32(const __grid_constant__ qlora_cuda_args args) {
  __shared__ unsigned matches[kRowThreads / 32];
  embeddingGrad<qlora_f32>(args, matches);
}
QLORA_CUDA_KERNEL(kRowThreads)
qlora_embedding_grad_bf16(const __grid_constant__ qlora_cuda_args args) {
  __shared__ unsigned matches[kRowThreads / 32];
  embeddingGrad<qlora_bf16>(args, matches);
}

// Norm of the gradient -------------------------------------------------------
//
// clip_norm: the norm of the gradient divided by the label count, and the
// factor that AdamW applies. length: the norm of one rank's shard x. The last
// constant is the number of f64 partial sums, which does not depend on the GPU.

/// Splits `count` elements of x, from `first` on, into `partials` equal ranges.
/// Block i sums the squares of range i.
QLORA_DEVICE void squaresOfPart(const void *x, int64_t first, int64_t count,
                                int64_t partials, void *sums) {
  const int64_t index = blockIdx.x, end = count * (index + 1) / partials;
  double sum = 0;
  for (int64_t i = count * index / partials + threadIdx.x; i < end;
       i += kRowThreads) {
    const double value = qlora_load_f32(x, first + i);
    sum += value * value;
  }
  sum = qlora_block_sum(sum);
  if (threadIdx.x == 0)
    *qlora_at<double>(sums, index) = sum;
}

/// Returns the sum of all partial sums. All threads of the block must call it.
QLORA_DEVICE double sumOfParts(void *sums, int64_t partials) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < partials; i += kRowThreads)
    sum += *qlora_at<double>(sums, i);
  return qlora_block_sum(sum);
}

QLORA_CUDA_KERNEL(kRowThreads)
qlora_clip_norm_partials(const __grid_constant__ qlora_cuda_args args) {
  const int64_t skip = args.constants[1];
  squaresOfPart(args.buffers[0], skip, args.constants[0] - skip,
                args.constants[3], args.buffers[4]);
}

QLORA_CUDA_KERNEL(kRowThreads)
qlora_length_partials(const __grid_constant__ qlora_cuda_args args) {
  squaresOfPart(args.buffers[0], 0, args.constants[0], args.constants[1],
                args.buffers[2]);
}

QLORA_DEVICE float clipScale(double norm, float count, float loss,
                             float maxNorm) {
  // `zero` is NaN if the norm or the loss is not finite.
  const float zero = (float(norm) - float(norm)) + (loss - loss);
  if (zero != 0)
    return zero;
  if (count <= 0)
    return 0;
  if (maxNorm <= 0)
    return float(1.0 / count);
  const double factor = maxNorm / (norm + 1e-6);
  return float((factor < 1.0 ? factor : 1.0) / count);
}

/// Computes the norm and the factor from the partial sums, with one block.
QLORA_CUDA_KERNEL(kRowThreads)
qlora_clip_norm_finish(const __grid_constant__ qlora_cuda_args args) {
  double sum = sumOfParts(args.buffers[4], args.constants[3]);
  if (threadIdx.x != 0)
    return;
  for (int64_t rank = 0; rank < args.constants[2]; ++rank) {
    const double length = qlora_load_f32(args.buffers[1], rank);
    sum += length * length;
  }
  const float count = qlora_load_f32(args.buffers[0], 1);
  const double norm = count > 0 ? sqrt(sum) / count : 0.0;
  qlora_store_f32(args.buffers[2], 0, float(norm));
  qlora_store_f32(args.buffers[3], 0,
                  clipScale(norm, count, qlora_load_f32(args.buffers[0], 0),
                            args.step->max_grad_norm));
}

/// Computes the norm from the partial sums, with one block.
QLORA_CUDA_KERNEL(kRowThreads)
qlora_length_finish(const __grid_constant__ qlora_cuda_args args) {
  const double sum = sumOfParts(args.buffers[2], args.constants[1]);
  if (threadIdx.x == 0)
    qlora_store_f32(args.buffers[1], 0, float(sqrt(sum)));
}
