// SPDX-License-Identifier: MIT

// adapter_matmul. Kernels.def lists the op's buffers and constants; one more
// constant follows: the threads that compute an output, a power of two. In the
// variant `long` that is a block. In the variant `short` it is a part of a
// warp, and a block has adjacent outputs of one row.

#include "runtime/Kernels/Cuda/Device/Common.cuh"

constexpr int kAdapterThreads = 256;

struct AdapterShape {
  int64_t n, k, adapters, ldx, ldy;
  float beta;
  int lanes;

  QLORA_DEVICE AdapterShape of(const qlora_cuda_args &args) {
    const int64_t *c = args.constants;
    return {c[1], c[2], c[3], c[4], c[5],
            float(__builtin_bit_cast(double, c[6])), int(c[7])};
  }
};

/// Returns this thread's part of the product of a row with an output's weights.
template <typename X>
QLORA_DEVICE float adapterPart(const qlora_cuda_args &args,
                               const AdapterShape &shape, int64_t row,
                               int64_t output, int64_t adapter, int lane) {
  const auto *x = qlora_at<typename X::storage>(args.buffers[0],
                                                row * shape.ldx);
  const float *w = qlora_at<float>(
      args.buffers[1], (output * shape.adapters + adapter) * shape.k);
  float sum = 0.0f;
  QLORA_UNROLL_8
  for (int64_t i = lane; i < shape.k; i += shape.lanes)
    sum = __fmaf_rn(X::load(x, i), w[i], sum);
  return sum;
}

template <typename Y>
QLORA_DEVICE void adapterStore(const qlora_cuda_args &args,
                               const AdapterShape &shape, int64_t row,
                               int64_t output, float sum) {
  const int64_t i = row * shape.ldy + output;
  if (shape.beta != 0.0f)
    sum = __fmaf_rn(shape.beta, Y::load(args.buffers[3], i), sum);
  Y::store(args.buffers[3], i, sum);
}

/// Returns the row's adapter, or -1.
QLORA_DEVICE int64_t adapterOf(const qlora_cuda_args &args,
                               const AdapterShape &shape, int64_t row) {
  const int32_t adapter = *qlora_at<int32_t>(args.buffers[2], row);
  return adapter < shape.adapters ? adapter : -1;
}

/// One block per output.
template <typename X, typename Y>
QLORA_DEVICE void adapterLong(const qlora_cuda_args &args) {
  const AdapterShape shape = AdapterShape::of(args);
  const int64_t row = blockIdx.x / shape.n, output = blockIdx.x % shape.n;
  const int64_t adapter = adapterOf(args, shape, row);
  float sum = 0.0f;
  if (adapter >= 0)
    sum = qlora_block_sum(adapterPart<X>(args, shape, row, output, adapter,
                                         int(threadIdx.x)));
  if (threadIdx.x == 0)
    adapterStore<Y>(args, shape, row, output, sum);
}

/// `lanes` adjacent threads per output.
template <typename X, typename Y>
QLORA_DEVICE void adapterShort(const qlora_cuda_args &args) {
  const AdapterShape shape = AdapterShape::of(args);
  const int64_t outputs = kAdapterThreads / shape.lanes;
  const int64_t tiles = (shape.n + outputs - 1) / outputs;
  const int64_t row = blockIdx.x / tiles;
  const int64_t output =
      blockIdx.x % tiles * outputs + int(threadIdx.x) / shape.lanes;
  const int64_t adapter = adapterOf(args, shape, row);
  const int lane = int(threadIdx.x) % shape.lanes;
  float sum = 0.0f;
  if (adapter >= 0 && output < shape.n)
    sum = adapterPart<X>(args, shape, row, output, adapter, lane);
  for (int offset = shape.lanes / 2; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (lane == 0 && output < shape.n)
    adapterStore<Y>(args, shape, row, output, sum);
}

#define QLORA_ADAPTER_MATMUL(X, Y)                                             \
  QLORA_CUDA_SYMBOL(kAdapterThreads, qlora_adapter_matmul_long_##X##_##Y,      \
                    adapterLong<qlora_##X, qlora_##Y>)                         \
  QLORA_CUDA_SYMBOL(kAdapterThreads, qlora_adapter_matmul_short_##X##_##Y,     \
                    adapterShort<qlora_##X, qlora_##Y>)
QLORA_ADAPTER_MATMUL(f32, f32)
QLORA_ADAPTER_MATMUL(f32, bf16)
QLORA_ADAPTER_MATMUL(bf16, f32)
QLORA_ADAPTER_MATMUL(bf16, bf16)
