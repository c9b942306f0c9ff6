// SPDX-License-Identifier: MIT

// Functions of one number that a card has an instruction for, from sm_80 on.
// Those with a bound are not correctly rounded, but give the same number for the
// same argument in every kernel; to them, what is subnormal is zero.
//
// Where the text is compiled for the host, the tests' platform defines those
// with a bound, as wrong as it allows (tests/cuda/HostCuda.h), and conversions
// are computed as on the host.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_INSTRUCTIONS_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_INSTRUCTIONS_CUH

#define QLORA_DEVICE static inline __device__

#ifdef __NVCC__

/// 2^x within 2^-22 of itself, 0 below -126.
QLORA_DEVICE float qlora_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
/// 1 / x within 2^-23 of itself; 0 above 2^126.
QLORA_DEVICE float qlora_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
/// 1 / sqrt(x) within 2^-22.9 of itself; NaN below zero.
QLORA_DEVICE float qlora_inverse_root(float x) {
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
/// Exact.
QLORA_DEVICE float qlora_widen_f16(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
/// To nearest, ties to even; a NaN becomes 0x7fff.
QLORA_DEVICE uint16_t qlora_narrow_f16(float value) {
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}
QLORA_DEVICE uint16_t qlora_narrow_bf16(float value) {
  uint16_t half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}

#else

QLORA_DEVICE float qlora_exp2(float x) { return qlora_host_exp2(x); }
QLORA_DEVICE float qlora_reciprocal(float x) {
  return qlora_host_reciprocal(x);
}
QLORA_DEVICE float qlora_inverse_root(float x) {
  return qlora_host_inverse_root(x);
}

#endif // __NVCC__

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_INSTRUCTIONS_CUH
