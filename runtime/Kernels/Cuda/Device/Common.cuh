// SPDX-License-Identifier: MIT

// What every CUDA kernel of ours begins with, generated or written by hand:
// element types, sums over a warp and over a block, and the rows of a block.
//
// A text for nvcc, and for the compiler of the host that the tests use in its
// place; it includes nothing of CUDA. Only these are used of CUDA's language:
// __global__, __device__, __shared__, __launch_bounds__, __restrict__,
// __grid_constant__, threadIdx.x, blockIdx.x, blockDim.x, gridDim.x,
// __syncthreads, __shfl_xor_sync, __fmul_rn, __fadd_rn, and vectors of 8 and
// 16 bytes that this file defines itself; TensorCore.cuh adds instructions.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_COMMON_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_COMMON_CUH

#include "runtime/ABI/kernel.h"
#include "runtime/Kernels/Rows.h"

#ifndef QLORA_DEVICE
#define QLORA_DEVICE static inline __device__
#endif
/// Most threads of a block, then, if given, the fewest blocks of a processor:
/// 1 lets a thread have all its registers.
#define QLORA_CUDA_KERNEL(...)                                                 \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
/// A kernel that is one function of its arguments.
#define QLORA_CUDA_SYMBOL(Threads, Symbol, ...)                                \
  QLORA_CUDA_KERNEL(Threads)                                                   \
  Symbol(const __grid_constant__ qlora_cuda_args args) { __VA_ARGS__(args); }

/// Before a loop over an array that has to stay in registers, before a long
/// one whose loads would otherwise take too many, and before a rare one.
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
// A kernel is a template over these; its symbols end in their names.

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

// Neighbours are rounded in pairs, by one instruction from sm_80 on: the numbers
// of qlora_f32_to_bf16 and qlora_f32_to_f16, of whose NaNs the card makes 0x7fff.

/// Both rounded to nearest, ties to even: `low` in the low half.
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

// Sums --------------------------------------------------------------------------
//
// The order of additions is fixed by the text and the number of threads, so a
// sum has the same bits in every run.

/// The sum over the 32 lanes of a warp, in every lane.
template <typename T> QLORA_DEVICE T qlora_warp_sum(T value) {
  for (int offset = kQloraWarp / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

/// qlora_block_sum, with its shared memory: one value of each warp.
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

/// The sum over all threads of the block, in every thread. For 32 to 1024
/// threads, a multiple of 32; all of them must call it. It ends with a
/// __syncthreads, so that it can be called again at once.
QLORA_DEVICE float qlora_block_sum(float value) {
  __shared__ float partials[32];
  return qlora_block_sum_in(partials, value);
}
QLORA_DEVICE double qlora_block_sum(double value) {
  __shared__ double partials[32];
  return qlora_block_sum_in(partials, value);
}

/// The same for the largest value; NaN where one is NaN.
QLORA_DEVICE float qlora_warp_max(float value) {
  for (int offset = kQloraWarp / 2; offset > 0; offset /= 2)
    value =
        qlora_maximum(value, __shfl_xor_sync(0xffffffffu, value, offset));
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
