// SPDX-License-Identifier: MIT

// Included by all of this project's CUDA kernels, generated or hand-written:
// element types, and sums over a warp and over a block.
//
// nvcc compiles it, and the host compiler does for tests, so it includes no
// CUDA header. Kernels may use only the CUDA keywords, variables and functions
// that tests/cuda/HostCuda.h defines for the host. TensorCore.cuh adds
// instructions.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_COMMON_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_COMMON_CUH

#include "runtime/ABI/kernel.h"
#include "runtime/Kernels/Rows.h"

#ifndef QLORA_DEVICE
#define QLORA_DEVICE static inline __device__
#endif
/// Begins the definition of a kernel. Arguments: the maximum threads of a
/// block, then optionally the minimum blocks per multiprocessor; 1 lets a
/// thread use the most registers.
#define QLORA_CUDA_KERNEL(...)                                                 \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
/// Defines the kernel `Symbol`, which passes its arguments to one function.
#define QLORA_CUDA_SYMBOL(Threads, Symbol, ...)                                \
  QLORA_CUDA_KERNEL(Threads)                                                   \
  Symbol(const __grid_constant__ qlora_cuda_args args) { __VA_ARGS__(args); }

/// Hints for the next loop. UNROLL: it indexes an array that must stay in
/// registers. UNROLL_2, UNROLL_8: loads of a fully unrolled loop would need too
/// many registers. ROLL: the loop runs rarely.
#ifdef __NVCC__
#define QLORA_UNROLL _Pragma("unroll")
#define QLORA_UNROLL_2 _Pragma("unroll 2")
#define QLORA_UNROLL_8 _Pragma("unroll 8")
#define QLORA_ROLL _Pragma("unroll 1")
#else
#define QLORA_UNROLL
#define QLORA_UNROLL_2
#define QLORA_UNROLL_8
#define QLORA_ROLL
#endif

constexpr int kQloraWarp = 32;

// Element types ---------------------------------------------------------------
//
// Kernels are templates over these types. A symbol ends in its types' names.

#define QLORA_ELEMENT(Name, Storage)                                           \
  struct qlora_##Name {                                                        \
    using storage = Storage;                                                   \
    QLORA_INLINE float load(const void *p, int64_t i) {                        \
      return qlora_load_##Name(p, i);                                          \
    }                                                                          \
    QLORA_INLINE void store(void *p, int64_t i, float value) {                 \
      qlora_store_##Name(p, i, value);                                         \
    }                                                                          \
  };
QLORA_ELEMENT(f32, float)
QLORA_ELEMENT(bf16, uint16_t)
QLORA_ELEMENT(f16, uint16_t)
QLORA_ELEMENT(i8, int8_t)
#undef QLORA_ELEMENT

// Adjacent values are rounded in pairs; sm_80 and later need one instruction.
// Results equal qlora_f32_to_bf16 and qlora_f32_to_f16, except that a NaN
// becomes 0x7fff.

/// Rounds two values to bf16, to nearest, ties to even. `low` becomes the low
/// half of the result.
QLORA_DEVICE uint32_t qlora_round_pair(float low, float high) {
#ifdef __NVCC__
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return uint32_t(qlora_f32_to_bf16(high)) << 16 | qlora_f32_to_bf16(low);
#endif
}
QLORA_DEVICE uint32_t qlora_round_pair_f16(float low, float high) {
#ifdef __NVCC__
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return uint32_t(qlora_f32_to_f16(high)) << 16 | qlora_f32_to_f16(low);
#endif
}

/// 16 bytes that are loaded or stored at once.
struct alignas(16) qlora_words {
  uint32_t word[4];
};

template <typename T> QLORA_DEVICE T *qlora_at(void *p, int64_t i) {
  return static_cast<T *>(p) + i;
}
template <typename T> QLORA_DEVICE const T *qlora_at(const void *p, int64_t i) {
  return static_cast<const T *>(p) + i;
}

// Sums -----------------------------------------------------------------------
//
// The order of additions depends only on the number of threads, so a sum has
// the same bits in every run.

/// Returns the sum over the 32 lanes of a warp, in every lane.
template <typename T> QLORA_DEVICE T qlora_warp_sum(T value) {
  for (int offset = kQloraWarp / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

/// Like qlora_block_sum(), with shared memory of the caller.
template <typename T>
QLORA_DEVICE T qlora_block_sum_in(T (&partials)[32], T value) {
  value = qlora_warp_sum(value);
  const unsigned lane = threadIdx.x % kQloraWarp;
  if (lane == 0)
    partials[threadIdx.x / kQloraWarp] = value;
  __syncthreads();
  const T sum =
      qlora_warp_sum(lane < blockDim.x / kQloraWarp ? partials[lane] : T(0));
  __syncthreads();
  return sum;
}

/// Returns the sum over all threads of the block, in every thread. All threads
/// must call it; their number is a multiple of 32 from 32 to 1024. Ends with
/// __syncthreads, so it can be called again immediately.
QLORA_DEVICE float qlora_block_sum(float value) {
  __shared__ float partials[32];
  return qlora_block_sum_in(partials, value);
}
QLORA_DEVICE double qlora_block_sum(double value) {
  __shared__ double partials[32];
  return qlora_block_sum_in(partials, value);
}

/// Return the maximum over a warp or a block; NaN if any value is NaN.
QLORA_DEVICE float qlora_warp_max(float value) {
  for (int offset = kQloraWarp / 2; offset > 0; offset /= 2)
    value = qlora_maximum(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}
QLORA_DEVICE float qlora_block_max(float value) {
  __shared__ float partials[32];
  value = qlora_warp_max(value);
  const unsigned lane = threadIdx.x % kQloraWarp;
  if (lane == 0)
    partials[threadIdx.x / kQloraWarp] = value;
  __syncthreads();
  const float largest = qlora_warp_max(
      lane < blockDim.x / kQloraWarp ? partials[lane] : qlora_lowest());
  __syncthreads();
  return largest;
}

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_COMMON_CUH
