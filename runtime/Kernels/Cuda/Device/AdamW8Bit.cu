// SPDX-License-Identifier: MIT

// adamw_8bit: the AdamW update of a tensor whose states are stored in 8 bits.
// The states equal the CPU kernel's. Kernels.def lists buffers and constants.

#include "runtime/Kernels/Cuda/Device/Common.cuh"
#include "runtime/Kernels/Math/AdamW8Bit.h"

constexpr int kStateWarps = qlora::kStateBlock / kQloraWarp;

/// Returns the largest `value` of the block, in every thread.
QLORA_DEVICE int32_t largestOfBlock(int32_t (&ofWarps)[kStateWarps],
                                    int32_t value) {
  for (int offset = kQloraWarp / 2; offset > 0; offset /= 2) {
    const int32_t other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  if (threadIdx.x % kQloraWarp == 0)
    ofWarps[threadIdx.x / kQloraWarp] = value;
  __syncthreads();
  for (int warp = 0; warp < kStateWarps; ++warp)
    value = ofWarps[warp] > value ? ofWarps[warp] : value;
  return value;
}

/// One thread per element; the elements of a thread block share a scale.
QLORA_CUDA_KERNEL(qlora::kStateBlock)
qlora_adamw_8bit(const __grid_constant__ qlora_cuda_args args) {
  __shared__ float map1[qlora::kNF4MapEntries], map2[qlora::kNF4MapEntries];
  __shared__ int32_t ofWarps1[kStateWarps], ofWarps2[kStateWarps];
  const int thread = int(threadIdx.x);
  map1[thread] = qlora::dynamicMapValue(true, thread);
  map2[thread] = qlora::dynamicMapValue(false, thread);
  const float scale = qlora_load_f32(args.buffers[6], 0);
  if (scale != scale)
    return;
  const float absmax1 = qlora_load_f32(args.buffers[3], blockIdx.x);
  const float absmax2 = qlora_load_f32(args.buffers[4], blockIdx.x);
  const int64_t index = int64_t(blockIdx.x) * qlora::kStateBlock + thread;
  const bool isInside = index < args.constants[0] * args.constants[1];
  auto *const code1 = qlora_at<uint8_t>(args.buffers[1], index);
  auto *const code2 = qlora_at<uint8_t>(args.buffers[2], index);
  __syncthreads();
  float m = 0, v = 0;
  if (isInside) {
    m = qlora::nf4Multiply(map1[*code1], absmax1);
    v = qlora::nf4Multiply(map2[*code2], absmax2);
    const auto rate = qlora::UpdateRate::of(
        *args.step, __builtin_bit_cast(double, args.constants[2]),
        args.constants[3] != 0);
    qlora_store_f32(args.buffers[0], index,
                    qlora::adamWStep(
                        qlora_load_f32(args.buffers[0], index), m, v,
                        qlora::nf4Multiply(
                            qlora_load_f32(args.buffers[5], index), scale),
                        rate, *args.step));
  }
  const float newAbsmax1 = qlora_from_bits(
      uint32_t(largestOfBlock(ofWarps1, qlora::nf4Magnitude(m))));
  const float newAbsmax2 = qlora_from_bits(
      uint32_t(largestOfBlock(ofWarps2, qlora::nf4Magnitude(v))));
  if (thread == 0) {
    qlora_store_f32(args.buffers[3], blockIdx.x, newAbsmax1);
    qlora_store_f32(args.buffers[4], blockIdx.x, newAbsmax2);
  }
  if (!isInside)
    return;
  *code1 = qlora::stateCode(map1, m, newAbsmax1);
  *code2 = qlora::stateCode(map2, v, newAbsmax2);
}
