// SPDX-License-Identifier: MIT

// quantize and quantize_scales, with the arithmetic of Math/NF4Quantize.h.
// Bytes equal those of the CPU. Kernels.def lists buffers and constants.

#include "runtime/Kernels/Cuda/Device/Common.cuh"
#include "runtime/Kernels/Math/NF4Quantize.h"

constexpr int kQuantizeThreads = 256;
constexpr int kQuantizeWarps = kQuantizeThreads / kQloraWarp;

QLORA_DEVICE int32_t largestOfWarp(int32_t value) {
  for (int offset = kQloraWarp / 2; offset > 0; offset /= 2) {
    const int32_t other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  return value;
}

// Elements --------------------------------------------------------------------

QLORA_DEVICE uint32_t codeOf(float value) {
  uint32_t code = 0;
  QLORA_UNROLL
  for (int m = 0; m < qlora::kNF4Midpoints; ++m)
    code += value > qlora::nf4Midpoint(m) ? 1u : 0u;
  return code;
}

/// Quantizes one block of the format with one warp: `count` elements from
/// `first` on. Returns the block's scale. A byte's high half is the first of
/// two elements. If `count` is odd, the last low half is the code of zero.
template <typename In>
QLORA_DEVICE float quantizeBlock(const void *x, int64_t first, int64_t count,
                                 bool isWhole, uint8_t *packed) {
  const int lane = int(threadIdx.x) % kQloraWarp;
  int32_t largest = 0;
  for (int64_t i = lane; i < count; i += kQloraWarp) {
    const int32_t magnitude = qlora::nf4Magnitude(In::load(x, first + i));
    largest = magnitude > largest ? magnitude : largest;
  }
  const float absmax = qlora::nf4WithoutPayload(
      qlora_from_bits(uint32_t(largestOfWarp(largest))));
  const float divisor = qlora::nf4Divisor(absmax);
  const float inverse = qlora::nf4Divide(1.0f, divisor);
  const auto code = [&](int64_t i) {
    if (i >= count)
      return codeOf(0.0f);
    const float value = In::load(x, first + i);
    return codeOf(isWhole ? qlora::nf4Scaled(value, inverse)
                          : qlora::nf4Divided(value, divisor));
  };
  for (int64_t pair = lane; 2 * pair < count; pair += kQloraWarp)
    packed[pair] = uint8_t(code(2 * pair) << 4 | code(2 * pair + 1));
  return isWhole ? absmax : divisor;
}

template <typename In> QLORA_DEVICE void quantize(const qlora_cuda_args &args) {
  const int64_t elements = args.constants[0], block = args.constants[1];
  const int64_t index = int64_t(blockIdx.x) * kQuantizeWarps +
                        int(threadIdx.x) / kQloraWarp;
  const int64_t first = index * block;
  if (first >= elements)
    return;
  const bool isWhole = elements - first >= block;
  const float scale = quantizeBlock<In>(
      args.buffers[0], first, isWhole ? block : elements - first, isWhole,
      qlora_at<uint8_t>(args.buffers[1], first / 2));
  if (threadIdx.x % kQloraWarp == 0)
    qlora_store_f32(args.buffers[2], index, scale);
}

#define QLORA_QUANTIZE(In)                                                     \
  QLORA_CUDA_SYMBOL(kQuantizeThreads, qlora_quantize_##In, quantize<qlora_##In>)
QLORA_QUANTIZE(f32)
QLORA_QUANTIZE(bf16)
QLORA_QUANTIZE(f16)

// Scales ----------------------------------------------------------------------

/// Computes the scales' mean in one block; each thread computes a partial sum.
QLORA_CUDA_KERNEL(qlora::kNF4MeanPartials)
qlora_quantize_offset(const __grid_constant__ qlora_cuda_args args) {
  __shared__ double partials[qlora::kNF4MeanPartials];
  const int64_t blocks = args.constants[0];
  const int thread = int(threadIdx.x);
  double sum = 0;
  for (int64_t i = thread; i < blocks; i += qlora::kNF4MeanPartials)
    sum += double(qlora_load_f32(args.buffers[0], i));
  partials[thread] = sum;
  for (int half = qlora::kNF4MeanPartials / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half)
      partials[thread] += partials[thread + half];
  }
  if (thread == 0)
    qlora_store_f32(args.buffers[4], 0, qlora::nf4Offset(partials[0], blocks));
}

/// Quantizes, in each thread block, 256 scales that share a nestedAbsmax.
QLORA_CUDA_KERNEL(kQuantizeThreads)
qlora_quantize_scales(const __grid_constant__ qlora_cuda_args args) {
  __shared__ float map[qlora::kNF4MapEntries];
  __shared__ int32_t magnitudes[kQuantizeWarps];
  const int thread = int(threadIdx.x);
  const int64_t index = int64_t(blockIdx.x) * kQuantizeThreads + thread;
  const bool isInside = index < args.constants[0];
  const float offset = qlora_load_f32(args.buffers[4], 0);
  float shifted = 0;
  if (isInside)
    shifted = qlora::nf4Shifted(qlora_load_f32(args.buffers[0], index), offset);
  map[thread] = qlora_load_f32(args.buffers[1], thread);
  const int32_t ofWarp = largestOfWarp(qlora::nf4Magnitude(shifted));
  if (thread % kQloraWarp == 0)
    magnitudes[thread / kQloraWarp] = ofWarp;
  __syncthreads();
  int32_t largest = 0;
  for (int warp = 0; warp < kQuantizeWarps; ++warp)
    largest = magnitudes[warp] > largest ? magnitudes[warp] : largest;
  const float absmax = qlora_from_bits(uint32_t(largest));
  if (thread == 0)
    qlora_store_f32(args.buffers[3], blockIdx.x, absmax);
  if (!isInside)
    return;
  const int32_t bucket =
      absmax == 0.0f
          ? -1
          : qlora::nf4Bucket(shifted, qlora::nf4Divide(1.0f, absmax));
  *qlora_at<uint8_t>(args.buffers[2], index) =
      bucket < 0 ? uint8_t(0) : qlora::nf4NearestCode(map, bucket);
}
