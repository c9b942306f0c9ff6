// SPDX-License-Identifier: MIT

// Scalar functions that are one GPU instruction since sm_80. Functions with an
// error bound are not correctly rounded, but are deterministic and the same in
// every kernel. They treat subnormals as zero.
//
// On the host, tests/cuda/HostCuda.h defines the functions with an error bound.
// Their errors there come close to the bound. Conversions use host code.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_INSTRUCTIONS_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_INSTRUCTIONS_CUH

#define QLORA_DEVICE static inline __device__

#ifdef __NVCC__

#define QLORA_INSTRUCTION(Result, Name, Argument, Text, Out, In)               \
  QLORA_DEVICE Result Name(Argument x) {                                       \
    Result y;                                                                  \
    asm(Text " %0, %1;" : Out(y) : In(x));                                     \
    return y;                                                                  \
  }
/// Returns 2^x with relative error 2^-22; 0 for x below -126.
QLORA_INSTRUCTION(float, qlora_exp2, float, "ex2.approx.ftz.f32", "=f", "f")
/// Returns 1 / x with relative error 2^-23; 0 for x above 2^126.
QLORA_INSTRUCTION(float, qlora_reciprocal, float, "rcp.approx.ftz.f32", "=f",
                  "f")
/// Returns 1 / sqrt(x) with relative error 2^-22.9; NaN for x below zero.
QLORA_INSTRUCTION(float, qlora_inverse_root, float, "rsqrt.approx.ftz.f32",
                  "=f", "f")
/// Converts f16 to f32, exactly.
QLORA_INSTRUCTION(float, qlora_widen_f16, uint16_t, "cvt.f32.f16", "=f", "h")
/// Convert f32, rounding to nearest, ties to even; a NaN becomes 0x7fff.
QLORA_INSTRUCTION(uint16_t, qlora_narrow_f16, float, "cvt.rn.f16.f32", "=h",
                  "f")
QLORA_INSTRUCTION(uint16_t, qlora_narrow_bf16, float, "cvt.rn.bf16.f32", "=h",
                  "f")
#undef QLORA_INSTRUCTION

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
