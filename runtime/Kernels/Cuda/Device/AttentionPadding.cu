// SPDX-License-Identifier: MIT

// Kernels before and after cuDNN's attention, for segments and padding
// (Cuda/CudnnAttention.cpp).

#include "runtime/Kernels/Cuda/Device/Common.cuh"

// Reach of a query -----------------------------------------------------------

constexpr int kReachThreads = 1024;

/// Returns the largest `value` of this and all earlier threads of the block.
/// `shared` holds one value per thread.
QLORA_DEVICE int32_t largestSoFar(int32_t value, int32_t *shared) {
  const int thread = int(threadIdx.x);
  for (int distance = 1; distance < kReachThreads; distance *= 2) {
    shared[thread] = value;
    __syncthreads();
    const int32_t other =
        thread >= distance ? shared[thread - distance] : value;
    __syncthreads();
    value = other > value ? other : value;
  }
  return value;
}

/// Returns the token if it starts a segment, otherwise -1.
QLORA_DEVICE int32_t beginning(const void *segments, int64_t token,
                               int64_t length) {
  const bool begins =
      token < length && (token == 0 || qlora_load_i32(segments, token) !=
                                           qlora_load_i32(segments, token - 1));
  return begins ? int32_t(token) : -1;
}

/// Writes reach[batch, length] for segments[batch, length]: the number of
/// tokens from the start of a token's segment through the token, at most
/// `window` if that is not 0. A block handles kReachThreads tokens, and
/// searches backwards for its first segment's start. Constants: length, window.
QLORA_CUDA_KERNEL(kReachThreads)
qlora_attention_reach(const __grid_constant__ qlora_cuda_args args) {
  __shared__ int32_t shared[kReachThreads];
  __shared__ int32_t latest;
  const int64_t length = args.constants[0], window = args.constants[1];
  const int64_t blocks = (length + kReachThreads - 1) / kReachThreads;
  const int64_t row = blockIdx.x / blocks * length;
  const int64_t first = blockIdx.x % blocks * kReachThreads;
  const void *segments = qlora_at<int32_t>(args.buffers[0], row);
  const int thread = int(threadIdx.x);
  int32_t begin =
      largestSoFar(beginning(segments, first + thread, length), shared);
  int32_t before = -1;
  for (int64_t from = first; before < 0 && from > 0;) {
    from -= kReachThreads;
    const int32_t found =
        largestSoFar(beginning(segments, from + thread, length), shared);
    if (thread == kReachThreads - 1)
      latest = found;
    __syncthreads();
    before = latest;
    __syncthreads();
  }
  begin = begin < 0 ? before : begin;
  const int64_t token = first + thread;
  if (token >= length)
    return;
  const int64_t reach = token - begin + 1;
  qlora_store_i32(args.buffers[1], row + token,
                  int32_t(window != 0 && window < reach ? window : reach));
}

// Queries of segment 0 -------------------------------------------------------
//
// Each kernel has one thread per query and head. Its buffers and constants are
// the op's.

constexpr int kPaddingThreads = 256;

/// This thread's query and head. `index` is in lse [batch, heads, length].
struct PaddedQuery {
  int64_t index, row, head;
  bool isInside, isPadding;

  QLORA_DEVICE PaddedQuery of(const qlora_cuda_args &args) {
    const int64_t batch = args.constants[0], length = args.constants[1];
    const int64_t heads = args.constants[2];
    PaddedQuery query;
    query.index = int64_t(blockIdx.x) * kPaddingThreads + threadIdx.x;
    query.isInside = query.index < batch * heads * length;
    const int64_t b = query.index / (heads * length);
    query.head = query.index / length % heads;
    query.row = b * length + query.index % length;
    query.isPadding = query.isInside &&
                      qlora_load_i32(args.buffers[3], query.row) == 0;
    return query;
  }
};

/// attention: sets out (bf16) and lse to 0 for padding.
QLORA_CUDA_KERNEL(kPaddingThreads)
qlora_attention_padding_out(const __grid_constant__ qlora_cuda_args args) {
  const PaddedQuery query = PaddedQuery::of(args);
  if (!query.isPadding)
    return;
  const int64_t dim = args.constants[4], ldo = args.constants[8];
  for (int64_t d = 0; d < dim; ++d)
    qlora_store_bf16(args.buffers[4], query.row * ldo + query.head * dim + d,
                     0.0f);
  qlora_store_f32(args.buffers[5], query.index, 0.0f);
}

/// attention_grad: writes the lse that cuDNN reads to the start of the
/// workspace. The lse of padding is so large that all its probabilities are 0.
QLORA_CUDA_KERNEL(kPaddingThreads)
qlora_attention_padding_lse(const __grid_constant__ qlora_cuda_args args) {
  const PaddedQuery query = PaddedQuery::of(args);
  if (query.isInside)
    qlora_store_f32(
        args.buffers[10], query.index,
        query.isPadding ? 1e30f : qlora_load_f32(args.buffers[5], query.index));
}
