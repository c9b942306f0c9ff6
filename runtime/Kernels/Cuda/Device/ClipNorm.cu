// SPDX-License-Identifier: MIT

// clip_norm in a fixed number of partial sums, in f64: the length of the
// gradient divided by the label count, and what AdamW multiplies with. Both
// kernels have the op's buffers (gradient, norm, scale, workspace) and
// constants (elements, skip), then the number of partials.

#include "runtime/Kernels/Cuda/Device/Common.cuh"

constexpr int kClipThreads = 256;

/// Block i sums the squares of the i-th part of [skip, elements).
QLORA_CUDA_KERNEL(kClipThreads)
qlora_clip_norm_partials(const __grid_constant__ qlora_cuda_args args) {
  const int64_t skip = args.constants[1], count = args.constants[0] - skip;
  const int64_t partials = args.constants[2], index = blockIdx.x;
  const int64_t end = count * (index + 1) / partials;
  double sum = 0;
  for (int64_t i = count * index / partials + threadIdx.x; i < end;
       i += kClipThreads) {
    const double value = qlora_load_f32(args.buffers[0], skip + i);
    sum += value * value;
  }
  sum = qlora_block_sum(sum);
  if (threadIdx.x == 0)
    *qlora_at<double>(args.buffers[3], index) = sum;
}

QLORA_DEVICE float clipScale(double norm, float count, float maxNorm) {
  if (count <= 0)
    return 0;
  if (maxNorm <= 0)
    return float(1.0 / count);
  const double factor = maxNorm / (norm + 1e-6);
  return float((factor < 1.0 ? factor : 1.0) / count);
}

/// One block.
QLORA_CUDA_KERNEL(kClipThreads)
qlora_clip_norm_finish(const __grid_constant__ qlora_cuda_args args) {
  const int64_t partials = args.constants[2];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < partials; i += kClipThreads)
    sum += *qlora_at<double>(args.buffers[3], i);
  sum = qlora_block_sum(sum);
  if (threadIdx.x != 0)
    return;
  const float count = qlora_load_f32(args.buffers[0], 1);
  const double norm = count > 0 ? sqrt(sum) / count : 0.0;
  qlora_store_f32(args.buffers[1], 0, float(norm));
  qlora_store_f32(args.buffers[2], 0,
                  clipScale(norm, count, args.step->max_grad_norm));
}
