// SPDX-License-Identifier: MIT

// 16 bytes of elements, which a thread loads or stores at once, as f32.
// Neighbours are rounded in pairs, by one instruction from sm_80 on: the
// numbers of qlora_f32_to_bf16 and qlora_f32_to_f16, of whose NaNs the card
// makes 0x7fff.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_VECTORS_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_VECTORS_CUH

#include "runtime/Kernels/Cuda/Device/Common.cuh"

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

/// The elements of 16 bytes.
template <typename Element>
constexpr int kQloraVector = 16 / int(sizeof(typename Element::storage));

template <typename Element> struct qlora_vector {
  float value[kQloraVector<Element>];
};

template <typename Element>
QLORA_DEVICE qlora_vector<Element> qlora_unpack(const qlora_words &words) {
  qlora_vector<Element> vector;
  QLORA_UNROLL
  for (int i = 0; i < kQloraVector<Element>; ++i)
    vector.value[i] = Element::load(words.word, i);
  return vector;
}

QLORA_DEVICE qlora_words qlora_pack(const qlora_vector<qlora_f32> &vector) {
  qlora_words words;
  QLORA_UNROLL
  for (int i = 0; i < 4; ++i)
    words.word[i] = qlora_to_bits(vector.value[i]);
  return words;
}
QLORA_DEVICE qlora_words qlora_pack(const qlora_vector<qlora_bf16> &vector) {
  qlora_words words;
  QLORA_UNROLL
  for (int i = 0; i < 4; ++i)
    words.word[i] =
        qlora_round_pair(vector.value[2 * i], vector.value[2 * i + 1]);
  return words;
}
QLORA_DEVICE qlora_words qlora_pack(const qlora_vector<qlora_f16> &vector) {
  qlora_words words;
  QLORA_UNROLL
  for (int i = 0; i < 4; ++i)
    words.word[i] =
        qlora_round_pair_f16(vector.value[2 * i], vector.value[2 * i + 1]);
  return words;
}

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_VECTORS_CUH
