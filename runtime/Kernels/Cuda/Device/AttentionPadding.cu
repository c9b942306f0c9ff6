// SPDX-License-Identifier: MIT

// What attention says of queries of segment 0, around a library's kernels that
// do not know of it. A thread for each query and head, with the op's buffers
// and constants.

#include "runtime/Kernels/Cuda/Device/Common.cuh"

constexpr int kPaddingThreads = 256;

/// (batch, head, token) of this thread, as lse is stored.
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

/// attention: out and lse are 0 there. out is bf16.
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

/// attention_grad: the workspace begins with lse as the library is told it, so
/// large there that no probability is left.
QLORA_CUDA_KERNEL(kPaddingThreads)
qlora_attention_padding_lse(const __grid_constant__ qlora_cuda_args args) {
  const PaddedQuery query = PaddedQuery::of(args);
  if (query.isInside)
    qlora_store_f32(args.buffers[10], query.index,
                    query.isPadding
                        ? 1e30f
                        : qlora_load_f32(args.buffers[5], query.index));
}
