// SPDX-License-Identifier: MIT

// CUDA C++ for the host. host-nvcc force-includes this file before device code.
// It defines the keywords, variables and functions that our kernels use. For
// any other, the host compiler reports an error; add it here.
//
// A thread is a fiber of the driver (Driver/BlockRunner.h). Barriers, shuffles
// and votes call the driver and pass the source line, for error messages.
// Atomics are plain operations, because one thread runs at a time.
//
// host-nvcc rewrites two constructs that macros cannot. `__grid_constant__`
// parameters become references; `extern __shared__` arrays become pointers.

#ifndef QLORA_TESTS_CUDA_HOSTCUDA_H
#define QLORA_TESTS_CUDA_HOSTCUDA_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "HostImage.h"

#define QLORA_HOST_CUDA 1
#define QLORA_HOST_LINE int line = __builtin_LINE()

extern "C" const qlora_host_engine *qlora_host;
extern "C" qlora_host_place qlora_host_at;

// Keywords -------------------------------------------------------------------
// host-nvcc handles __global__, __grid_constant__, __launch_bounds__ and
// __shared__ after the preprocessor.

#define __host__
#define __device__
#define __constant__
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (::qlora_host_at.thread)
#define blockIdx (::qlora_host_at.block)
#define blockDim (::qlora_host_at.threadCount)
#define gridDim (::qlora_host_at.blockCount)
inline constexpr int warpSize = 32;
using dim3 = qlora_host_dim;
using uint3 = qlora_host_dim;

// Vector types: a load of one is one access, aligned to its size. -----------

#define QLORA_HOST_VECTOR(Type, Name)                                          \
  struct alignas(2 * sizeof(Type)) Name##2 {                                   \
    Type x, y;                                                                 \
  };                                                                           \
  struct alignas(sizeof(Type) < 8 ? 4 * sizeof(Type) : 16) Name##4 {           \
    Type x, y, z, w;                                                           \
  };                                                                           \
  inline Name##2 make_##Name##2(Type x, Type y) { return {x, y}; }             \
  inline Name##4 make_##Name##4(Type x, Type y, Type z, Type w) {              \
    return {x, y, z, w};                                                       \
  }
QLORA_HOST_VECTOR(float, float)
QLORA_HOST_VECTOR(double, double)
QLORA_HOST_VECTOR(int, int)
QLORA_HOST_VECTOR(unsigned, uint)
QLORA_HOST_VECTOR(short, short)
QLORA_HOST_VECTOR(unsigned short, ushort)
QLORA_HOST_VECTOR(signed char, char)
QLORA_HOST_VECTOR(unsigned char, uchar)
QLORA_HOST_VECTOR(long long, longlong)
QLORA_HOST_VECTOR(unsigned long long, ulonglong)
#undef QLORA_HOST_VECTOR

// Blocks ---------------------------------------------------------------------

inline void __syncthreads(QLORA_HOST_LINE) {
  qlora_host->block(QLORA_HOST_BARRIER, 0, line);
}
inline int __syncthreads_count(int predicate, QLORA_HOST_LINE) {
  return qlora_host->block(QLORA_HOST_COUNT, predicate, line);
}
inline int __syncthreads_or(int predicate, QLORA_HOST_LINE) {
  return qlora_host->block(QLORA_HOST_COUNT, predicate, line) != 0;
}
inline int __syncthreads_and(int predicate, QLORA_HOST_LINE) {
  return qlora_host->block(QLORA_HOST_COUNT, !predicate, line) == 0;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}
[[noreturn]] inline void __trap(QLORA_HOST_LINE) {
  qlora_host->fail("__trap()", line);
  __builtin_unreachable();
}

// Warps ----------------------------------------------------------------------

inline void __syncwarp(uint32_t mask = 0xffffffffu, QLORA_HOST_LINE) {
  qlora_host->warp(QLORA_HOST_SYNC, mask, 0, 0, line);
}
inline unsigned __ballot_sync(uint32_t mask, int predicate, QLORA_HOST_LINE) {
  return unsigned(
      qlora_host->warp(QLORA_HOST_BALLOT, mask, predicate != 0, 0, line));
}
inline int __any_sync(uint32_t mask, int predicate, QLORA_HOST_LINE) {
  return __ballot_sync(mask, predicate, line) != 0;
}
inline int __all_sync(uint32_t mask, int predicate, QLORA_HOST_LINE) {
  return __ballot_sync(mask, predicate, line) == mask;
}

inline int qlora_host_lane() {
  const qlora_host_dim &size = qlora_host_at.threadCount;
  const qlora_host_dim &at = qlora_host_at.thread;
  return int((at.x + size.x * (at.y + size.y * at.z)) % 32);
}

/// Returns the value of lane `source` of the warp.
template <typename T>
T qlora_host_shuffle(uint32_t mask, T value, int source, int line) {
  static_assert(sizeof(T) <= 8 && __is_trivially_copyable(T));
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = qlora_host->warp(QLORA_HOST_SHUFFLE, mask, bits, source, line);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32,
              QLORA_HOST_LINE) {
  const int base = qlora_host_lane() & ~(width - 1);
  return qlora_host_shuffle(mask, value, base + (source & (width - 1)), line);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32,
                  QLORA_HOST_LINE) {
  const int lane = qlora_host_lane();
  const int source = lane ^ bits;
  const bool isInside = (source & ~(width - 1)) <= (lane & ~(width - 1));
  return qlora_host_shuffle(mask, value, isInside ? source : lane, line);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32,
                   QLORA_HOST_LINE) {
  const int lane = qlora_host_lane();
  const int source = lane + int(delta);
  const bool isInside = (lane & (width - 1)) + int(delta) < width;
  return qlora_host_shuffle(mask, value, isInside ? source : lane, line);
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32,
                 QLORA_HOST_LINE) {
  const int lane = qlora_host_lane();
  const bool isInside = (lane & (width - 1)) >= int(delta);
  return qlora_host_shuffle(mask, value, isInside ? lane - int(delta) : lane,
                            line);
}

// Memory ---------------------------------------------------------------------

template <typename T> T __ldg(const T *p) { return *p; }
template <typename T> T __ldcg(const T *p) { return *p; }
template <typename T> T __ldcs(const T *p) { return *p; }
template <typename T> void __stcg(T *p, T value) { *p = value; }
template <typename T> void __stcs(T *p, T value) { *p = value; }

template <typename T, typename U> T atomicAdd(T *p, U value) {
  const T before = *p;
  *p = before + T(value);
  return before;
}
template <typename T, typename U> T atomicExch(T *p, U value) {
  const T before = *p;
  *p = T(value);
  return before;
}
template <typename T, typename U> T atomicMax(T *p, U value) {
  const T before = *p;
  *p = before > T(value) ? before : T(value);
  return before;
}
template <typename T, typename U> T atomicMin(T *p, U value) {
  const T before = *p;
  *p = before < T(value) ? before : T(value);
  return before;
}
template <typename T, typename U, typename V>
T atomicCAS(T *p, U compare, V value) {
  const T before = *p;
  *p = before == T(compare) ? T(value) : before;
  return before;
}

// Numbers --------------------------------------------------------------------
// Roundings are explicit: device code is compiled with -ffp-contract=off. A NaN
// from f32 arithmetic on a GPU has fixed bits, for any operands.

inline float qlora_host_result(float a) {
  return a == a ? a : __builtin_bit_cast(float, 0x7fffffffu);
}
inline float __fadd_rn(float a, float b) { return qlora_host_result(a + b); }
inline float __fsub_rn(float a, float b) { return qlora_host_result(a - b); }
inline float __fmul_rn(float a, float b) { return qlora_host_result(a * b); }
inline float __fdiv_rn(float a, float b) { return qlora_host_result(a / b); }
inline float __fmaf_rn(float a, float b, float c) {
  return qlora_host_result(fmaf(a, b, c));
}
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __frsqrt_rn(float a) { return float(1.0 / sqrt(double(a))); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }

/// Returns the result of an approximate instruction. Its relative error is at
/// most `units` * 2^-24. A hash of the argument chooses its size and sign.
/// Subnormal results are zero.
inline float qlora_host_inexact(double exact, float argument, double units) {
  const uint32_t hash = __builtin_bit_cast(uint32_t, argument) * 0x9e3779b9u;
  const double part = (int32_t(hash) * 0x1p-31) * (units - 1) * 0x1p-24;
  const double value = __builtin_isfinite(exact) ? exact + exact * part : exact;
  if (value < 0x1p-126 && value > -0x1p-126)
    return 0;
  return float(value);
}
inline float qlora_host_flushed(float a) {
  return a < 0x1p-126f && a > -0x1p-126f ? copysignf(0, a) : a;
}
inline float qlora_host_exp2(float a) {
  return qlora_host_inexact(exp2(double(a)), a, 4);
}
inline float qlora_host_reciprocal(float a) {
  return qlora_host_inexact(1 / double(qlora_host_flushed(a)), a, 2);
}
inline float qlora_host_inverse_root(float a) {
  return qlora_host_inexact(1 / sqrt(double(qlora_host_flushed(a))), a, 2.1);
}

inline float rsqrtf(float a) { return float(1.0 / sqrt(double(a))); }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float a) { return fminf(fmaxf(a, 0.0f), 1.0f); }

template <typename To, typename From> To qlora_host_bits(From value) {
  return __builtin_bit_cast(To, value);
}
inline unsigned __float_as_uint(float a) {
  return qlora_host_bits<unsigned>(a);
}
inline int __float_as_int(float a) { return qlora_host_bits<int>(a); }
inline float __uint_as_float(unsigned a) { return qlora_host_bits<float>(a); }
inline float __int_as_float(int a) { return qlora_host_bits<float>(a); }
inline int __float2int_rn(float a) { return int(rintf(a)); }
inline int __float2int_rz(float a) { return int(a); }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __clz(int a) { return a ? __builtin_clz(unsigned(a)) : 32; }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return unsigned(uint64_t(a) * b >> 32);
}
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return uint64_t(static_cast<unsigned __int128>(a) * b >> 64);
}

// Like CUDA's overloads, these take two values of one type or of different
// integer types.
template <typename T, typename U>
constexpr auto min(T a, U b) -> decltype(a + b) {
  return a < b ? a : b;
}
template <typename T, typename U>
constexpr auto max(T a, U b) -> decltype(a + b) {
  return a > b ? a : b;
}

#undef QLORA_HOST_LINE

#include "HostTensorCore.h"

#endif // QLORA_TESTS_CUDA_HOSTCUDA_H
