// SPDX-License-Identifier: MIT

// What generated and hand-written CUDA kernels share: sums over a warp and
// over a block, in an order that depends on nothing but the number of threads.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_COMMON_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_COMMON_CUH

#include "runtime/ABI/kernel.h"
#include "runtime/Kernels/Rows.h"

/// The sum over the 32 lanes of a warp, in every lane. All lanes must call.
static __device__ inline float qlora_warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

/// The sum over the threads of a block (32, 64, ... 1024), in every thread.
/// All threads must call. Ends with a barrier.
static __device__ inline float qlora_block_sum(float value) {
  __shared__ float sums[32];
  value = qlora_warp_sum(value);
  if (threadIdx.x % 32 == 0)
    sums[threadIdx.x / 32] = value;
  __syncthreads();
  const bool isWarp = threadIdx.x % 32 < blockDim.x / 32;
  const float total = qlora_warp_sum(isWarp ? sums[threadIdx.x % 32] : 0.0f);
  __syncthreads();
  return total;
}

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_COMMON_CUH
