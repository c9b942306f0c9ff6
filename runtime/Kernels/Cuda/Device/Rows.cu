// SPDX-License-Identifier: MIT

// The walks over rows: conversion and copy with other strides, accumulate,
// column_sum. Buffers and constants are those of the op in Kernels.def;
// convert has the ones of copy_rows.

#include "runtime/Kernels/Cuda/Device/Common.cuh"

constexpr int kRowThreads = 256;
/// Elements of one thread: RowKernels.cpp counts blocks with it.
constexpr int kRowElements = 4;

/// Calls use(row, column) for this block's elements of [rows, columns],
/// neighbours in neighbouring threads.
template <typename Use>
QLORA_DEVICE void forEachElement(int64_t rows, int64_t columns, Use use) {
  const int64_t first =
      int64_t(blockIdx.x) * (kRowThreads * kRowElements) + threadIdx.x;
  const int64_t count = rows * columns;
  const bool isSmall = count < (int64_t(1) << 31);
  for (int step = 0; step < kRowElements; ++step) {
    const int64_t element = first + step * kRowThreads;
    if (element >= count)
      return;
    // A division of 64 bits is some 20 times slower.
    const int64_t row = rows == 1 ? 0
                        : isSmall ? uint32_t(element) / uint32_t(columns)
                                  : element / columns;
    use(row, element - row * columns);
  }
}

template <typename From, typename To>
QLORA_DEVICE void convert(const qlora_cuda_args &args) {
  const int64_t ldx = args.constants[2], ldo = args.constants[3];
  forEachElement(args.constants[0], args.constants[1],
                 [&](int64_t row, int64_t column) {
                   To::store(args.buffers[1], row * ldo + column,
                             From::load(args.buffers[0], row * ldx + column));
                 });
}

#define QLORA_CONVERT(From, To)                                                \
  QLORA_CUDA_KERNEL(kRowThreads)                                               \
  qlora_convert_##From##_##To(const __grid_constant__ qlora_cuda_args args) {  \
    convert<qlora_##From, qlora_##To>(args);                                   \
  }
QLORA_CONVERT(f32, bf16)
QLORA_CONVERT(f32, f16)
QLORA_CONVERT(bf16, f32)
QLORA_CONVERT(bf16, f16)
QLORA_CONVERT(f16, f32)
QLORA_CONVERT(f16, bf16)

template <typename Word>
QLORA_DEVICE void copyRows(const qlora_cuda_args &args) {
  const int64_t ldx = args.constants[2], ldo = args.constants[3];
  forEachElement(args.constants[0], args.constants[1],
                 [&](int64_t row, int64_t column) {
                   *qlora_at<Word>(args.buffers[1], row * ldo + column) =
                       *qlora_at<Word>(args.buffers[0], row * ldx + column);
                 });
}

QLORA_CUDA_KERNEL(kRowThreads)
qlora_copy_rows_b16(const __grid_constant__ qlora_cuda_args args) {
  copyRows<uint16_t>(args);
}
QLORA_CUDA_KERNEL(kRowThreads)
qlora_copy_rows_b32(const __grid_constant__ qlora_cuda_args args) {
  copyRows<uint32_t>(args);
}
/// Rows of whole 16 bytes; strides are counted in them.
QLORA_CUDA_KERNEL(kRowThreads)
qlora_copy_rows_b128(const __grid_constant__ qlora_cuda_args args) {
  copyRows<qlora_words>(args);
}

template <typename X, typename Y>
QLORA_DEVICE void accumulate(const qlora_cuda_args &args) {
  const int64_t ldx = args.constants[2], ldy = args.constants[3];
  forEachElement(args.constants[0], args.constants[1],
                 [&](int64_t row, int64_t column) {
                   const int64_t at = row * ldy + column;
                   const float sum = Y::load(args.buffers[1], at) +
                                     X::load(args.buffers[0], row * ldx + column);
                   Y::store(args.buffers[1], at, sum);
                 });
}

#define QLORA_ACCUMULATE(X, Y)                                                 \
  QLORA_CUDA_KERNEL(kRowThreads)                                               \
  qlora_accumulate_##X##_##Y(const __grid_constant__ qlora_cuda_args args) {   \
    accumulate<qlora_##X, qlora_##Y>(args);                                    \
  }
QLORA_ACCUMULATE(f32, f32)
QLORA_ACCUMULATE(f32, bf16)
QLORA_ACCUMULATE(bf16, f32)
QLORA_ACCUMULATE(bf16, bf16)

/// A block sums a run of rows of 256 columns into one partial sum. Constants:
/// rows, columns, ldx, then the number of partials.
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

QLORA_CUDA_KERNEL(kRowThreads)
qlora_column_sum_f32(const __grid_constant__ qlora_cuda_args args) {
  columnSum<qlora_f32>(args);
}
QLORA_CUDA_KERNEL(kRowThreads)
qlora_column_sum_bf16(const __grid_constant__ qlora_cuda_args args) {
  columnSum<qlora_bf16>(args);
}

/// out += the partial sums, in their order.
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
  *out += sum;
}
