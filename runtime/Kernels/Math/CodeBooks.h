// SPDX-License-Identifier: MIT

// Values of the codes of stored formats, before the scale is applied.

#ifndef QLORA_RUNTIME_KERNELS_MATH_CODEBOOKS_H
#define QLORA_RUNTIME_KERNELS_MATH_CODEBOOKS_H

#ifdef __CUDACC__
#define QLORA_HOST_DEVICE __host__ __device__
#else
#define QLORA_HOST_DEVICE
#endif

namespace qlora {

/// NormalFloat (Dettmers et al., "QLoRA", 2023): 16 increasing values.
QLORA_HOST_DEVICE constexpr float nf4Value(int code) {
  constexpr float kValues[16] = {
      -1.0f,
      -0.6961928009986877f,
      -0.5250730514526367f,
      -0.39491748809814453f,
      -0.28444138169288635f,
      -0.18477343022823334f,
      -0.09105003625154495f,
      0.0f,
      0.07958029955625534f,
      0.16093020141124725f,
      0.24611230194568634f,
      0.33791524171829224f,
      0.44070982933044434f,
      0.5626170039176941f,
      0.7229568362236023f,
      1.0f,
  };
  return kValues[code];
}

/// bitsandbytes' FP4: a sign bit, then the index of a magnitude.
constexpr float fp4Value(int code) {
  constexpr float kTwelfths[8] = {0.0f, 0.0625f, 8.0f, 12.0f,
                                  4.0f, 6.0f,    2.0f, 3.0f};
  const float value = kTwelfths[code & 7] / 12.0f;
  return code > 8 ? -value : value; // neither of the two zeros is negative
}

/// Returns the value of `code`, a sign bit, an exponent and a mantissa, with
/// the IEEE bias. The largest exponent is ordinary: no code is infinite.
constexpr float smallFloat(int code, int exponentBits, int mantissaBits) {
  const int mantissa = code & ((1 << mantissaBits) - 1);
  const int exponent = code >> mantissaBits & ((1 << exponentBits) - 1);
  const int bias = (1 << (exponentBits - 1)) - 1;
  float value = float(mantissa + (exponent ? 1 << mantissaBits : 0));
  int power = (exponent ? exponent : 1) - bias - mantissaBits;
  for (; power > 0; --power)
    value *= 2.0f;
  for (; power < 0; ++power)
    value /= 2.0f;
  return code >> (exponentBits + mantissaBits) ? -value : value;
}

/// E2M1 of the OCP Microscaling (MX) specification.
constexpr float mxfp4Value(int code) { return smallFloat(code, 2, 1); }

/// E4M3 without infinities. A code is NaN if its seven low bits are set.
constexpr float fp8Value(int code) {
  return (code & 127) == 127 ? __builtin_nanf("") : smallFloat(code, 4, 3);
}

/// The value of a two's complement code.
constexpr float int8Value(int code) {
  return float(code < 128 ? code : code - 256);
}

/// The code as an unsigned integer, for formats with zero points.
constexpr float integerValue(int code) { return float(code); }

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_MATH_CODEBOOKS_H
