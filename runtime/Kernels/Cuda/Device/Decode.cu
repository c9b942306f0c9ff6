// SPDX-License-Identifier: MIT

// decode of NF4, with and without double quantisation, in one launch per
// weight: the numbers of NF4Tensor::element (Math/NF4.h) to the bit, each
// operation rounded on its own. Where a thread stores 16 bytes its elements
// have one scale, because blocks and rows with scales of their own are
// multiples of 16 elements.
//
// Buffers: w, out. Constants: rows, columns, block, double_quant, then the
// byte offsets of scales, nestedAbsmax, nestedMap, codeBook and offset.

#include "runtime/Kernels/Cuda/Device/Common.cuh"
#include "runtime/Kernels/Math/NF4Scales.h"

constexpr int kDecodeThreads = 256;
/// Groups of 16 bytes of one thread: Decode.cpp counts blocks with it.
constexpr int kDecodeGroups = 4;

/// What a block looks numbers up in.
struct DecodeTables {
  float codeBook[16];
  float nestedMap[256];
};

struct DecodeWeight {
  const uint8_t *packed, *scales;
  const float *nestedAbsmax;
  float offset;
  int64_t columns, block, count;
  bool isDouble;

  QLORA_DEVICE DecodeWeight of(const qlora_cuda_args &args) {
    const uint8_t *base = qlora_at<uint8_t>(args.buffers[0], 0);
    const int64_t *c = args.constants;
    return {base,
            base + c[4],
            reinterpret_cast<const float *>(base + c[5]),
            *reinterpret_cast<const float *>(base + c[8]),
            c[1],
            c[2],
            c[0] * c[1],
            c[3] != 0};
  }
};

QLORA_DEVICE void fillTables(const qlora_cuda_args &args,
                             DecodeTables &tables) {
  const uint8_t *base = qlora_at<uint8_t>(args.buffers[0], 0);
  const int thread = int(threadIdx.x);
  if (thread < 16)
    tables.codeBook[thread] = qlora_load_f32(base + args.constants[7], thread);
  if (args.constants[3] != 0)
    tables.nestedMap[thread] = qlora_load_f32(base + args.constants[6], thread);
  __syncthreads();
}

/// The scale of the elements from `element` on.
QLORA_DEVICE float decodeAbsmax(const DecodeWeight &w,
                                const DecodeTables &tables, int64_t element) {
  const int64_t scale = qlora::nf4ScaleIndex(w.columns, w.block, element);
  if (!w.isDouble)
    return qlora_load_f32(w.scales, scale);
  const float product = __fmul_rn(tables.nestedMap[w.scales[scale]],
                                  w.nestedAbsmax[scale / 256]);
  return __fadd_rn(product, w.offset);
}

/// Element i of a word of packed bytes: the high half of a byte comes first.
QLORA_DEVICE float decodeElement(const DecodeTables &tables, uint32_t packed,
                                 int i, float absmax) {
  const uint32_t code = packed >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0)) & 15;
  return __fmul_rn(tables.codeBook[code], absmax);
}

/// Packed bytes of the `count` elements from an even one on.
template <int kCount>
QLORA_DEVICE uint32_t loadPacked(const DecodeWeight &w, int64_t element,
                                 int count) {
  const uint8_t *bytes = w.packed + element / 2;
  if (count == kCount)
    return kCount == 8 ? *reinterpret_cast<const uint32_t *>(bytes)
                       : *reinterpret_cast<const uint16_t *>(bytes);
  uint32_t packed = 0;
  for (int i = 0; i < (count + 1) / 2; ++i)
    packed |= uint32_t(bytes[i]) << (8 * i);
  return packed;
}

QLORA_DEVICE void storeWords(float *out, const float (&values)[4]) {
  qlora_words words;
  for (int i = 0; i < 4; ++i)
    words.word[i] = qlora_to_bits(values[i]);
  *reinterpret_cast<qlora_words *>(out) = words;
}

template <typename Out>
QLORA_DEVICE void storeWords(uint16_t *out, const float (&values)[8]) {
  uint16_t half[8];
  for (int i = 0; i < 8; ++i)
    Out::store(half, i, values[i]);
  qlora_words words;
  for (int i = 0; i < 4; ++i)
    words.word[i] = half[2 * i] | uint32_t(half[2 * i + 1]) << 16;
  *reinterpret_cast<qlora_words *>(out) = words;
}

template <typename Out>
QLORA_DEVICE void decode(const qlora_cuda_args &args, DecodeTables &tables) {
  using Storage = typename Out::storage;
  constexpr int kCount = 16 / sizeof(Storage);
  const DecodeWeight w = DecodeWeight::of(args);
  fillTables(args, tables);
  Storage *out = qlora_at<Storage>(args.buffers[1], 0);
  const bool isAligned = reinterpret_cast<uintptr_t>(out) % 16 == 0;
  const int64_t group =
      int64_t(blockIdx.x) * (kDecodeThreads * kDecodeGroups) + threadIdx.x;
  for (int step = 0; step < kDecodeGroups; ++step) {
    const int64_t element = (group + step * kDecodeThreads) * kCount;
    if (element >= w.count)
      return;
    const int count = w.count - element < kCount ? int(w.count - element)
                                                 : kCount;
    const uint32_t packed = loadPacked<kCount>(w, element, count);
    const float absmax = decodeAbsmax(w, tables, element);
    if (count < kCount || !isAligned) {
      for (int i = 0; i < count; ++i)
        Out::store(out, element + i, decodeElement(tables, packed, i, absmax));
      continue;
    }
    float values[kCount];
    for (int i = 0; i < kCount; ++i)
      values[i] = decodeElement(tables, packed, i, absmax);
    if constexpr (kCount == 4)
      storeWords(out + element, values);
    else
      storeWords<Out>(out + element, values);
  }
}

#define QLORA_DECODE(Out)                                                      \
  QLORA_CUDA_KERNEL(kDecodeThreads)                                            \
  qlora_decode_nf4_##Out(const __grid_constant__ qlora_cuda_args args) {       \
    __shared__ DecodeTables tables;                                            \
    decode<qlora_##Out>(args, tables);                                         \
  }
QLORA_DECODE(f32)
QLORA_DECODE(bf16)
QLORA_DECODE(f16)
