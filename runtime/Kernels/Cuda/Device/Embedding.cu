// SPDX-License-Identifier: MIT

// embedding and embedding_grad, with the op's buffers and constants. Token
// ids were checked when the data was read; one outside of the vocabulary gives
// a row of NaN, which the loss then shows, and no gradient.

#include "runtime/Kernels/Cuda/Device/RowLanes.cuh"

constexpr int kEmbeddingThreads = 256;

/// A block is one row of out.
template <typename W, typename Out>
QLORA_DEVICE void embedding(const qlora_cuda_args &args) {
  const int64_t columns = args.constants[1], vocab = args.constants[2];
  const int64_t row = blockIdx.x;
  const int64_t id = qlora_load_i32(args.buffers[0], row);
  auto *out = qlora_at<typename Out::storage>(args.buffers[2],
                                              row * args.constants[3]);
  if (id >= 0 && id < vocab)
    qlora_copy_row<W, Out>(
        qlora_at<typename W::storage>(args.buffers[1], id * columns), out,
        columns);
  else
    qlora_fill_row<Out>(out, columns, qlora_from_bits(0x7fc00000u));
}

#define QLORA_EMBEDDING(W, Out)                                                \
  QLORA_CUDA_SYMBOL(kEmbeddingThreads, qlora_embedding_##W##_##Out,            \
                    embedding<qlora_##W, qlora_##Out>)
QLORA_EMBEDDING(f32, f32)
QLORA_EMBEDDING(f32, bf16)
QLORA_EMBEDDING(bf16, f32)
QLORA_EMBEDDING(bf16, bf16)
QLORA_EMBEDDING(f16, f32)
QLORA_EMBEDDING(f16, bf16)

/// Whether some row before `row` has the same id; the same in all threads.
QLORA_DEVICE bool isRepeated(const void *ids, int64_t row, int32_t id) {
  int found = 0;
  for (int64_t other = threadIdx.x; other < row; other += kEmbeddingThreads)
    found |= qlora_load_i32(ids, other) == id;
  return __syncthreads_or(found) != 0;
}

/// A block is the first row of its id, and adds all rows of that id in their
/// order, as one thread would.
template <typename DOut>
QLORA_DEVICE void embeddingGrad(const qlora_cuda_args &args,
                                unsigned (&matches)[kEmbeddingThreads / 32]) {
  const int64_t rows = args.constants[0], columns = args.constants[1];
  const int64_t vocab = args.constants[2], lddo = args.constants[3];
  const int64_t first = blockIdx.x;
  const int32_t id = qlora_load_i32(args.buffers[0], first);
  if (id < 0 || id >= vocab || isRepeated(args.buffers[0], first, id))
    return;
  float *sum = qlora_at<float>(args.buffers[2], id * columns);
  for (int64_t begin = first; begin < rows; begin += kEmbeddingThreads) {
    const int64_t mine = begin + threadIdx.x;
    const unsigned ballot =
        __ballot_sync(0xffffffffu, mine < rows &&
                                       qlora_load_i32(args.buffers[0], mine) == id);
    if (threadIdx.x % kQloraWarp == 0)
      matches[threadIdx.x / kQloraWarp] = ballot;
    __syncthreads();
    for (int i = 0; i < kEmbeddingThreads; ++i)
      if (matches[i / 32] >> (i % 32) & 1)
        for (int64_t c = threadIdx.x; c < columns; c += kEmbeddingThreads)
          sum[c] += DOut::load(args.buffers[1], (begin + i) * lddo + c);
    __syncthreads();
  }
}

QLORA_CUDA_KERNEL(kEmbeddingThreads)
qlora_embedding_grad_f32(const __grid_constant__ qlora_cuda_args args) {
  __shared__ unsigned matches[kEmbeddingThreads / 32];
  embeddingGrad<qlora_f32>(args, matches);
}
QLORA_CUDA_KERNEL(kEmbeddingThreads)
qlora_embedding_grad_bf16(const __grid_constant__ qlora_cuda_args args) {
  __shared__ unsigned matches[kEmbeddingThreads / 32];
  embeddingGrad<qlora_bf16>(args, matches);
}
