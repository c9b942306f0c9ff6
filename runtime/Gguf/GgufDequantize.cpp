// SPDX-License-Identifier: MIT

// The values of GGUF's blocks. Each product and sum is rounded separately, as
// in the Python package gguf, so that the bits are equal.

#include "runtime/Gguf/GgufQuantize.h"

#include "runtime/Gguf/GgufBlocks.h"
#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Parallel.h"

#include <cassert>

namespace qlora {

using namespace gguf;

static void decode(const BlockQ4_0 &block, float *out) {
  const float d = loadHalf(block.d);
  uint8_t codes[32];
  unpackNibbles(block.codes, 16, codes);
  for (int i = 0; i < 32; ++i)
    out[i] = d * static_cast<float>(codes[i] - 8);
}

static void decode(const BlockQ5_0 &block, float *out) {
  const float d = loadHalf(block.d);
  uint8_t codes[32];
  unpackNibbles(block.codes, 16, codes);
  unpackFifthBits(block.high, codes);
  for (int i = 0; i < 32; ++i)
    out[i] = d * static_cast<float>(codes[i] - 16);
}

static void decode(const BlockQ5_1 &block, float *out) {
  const float d = loadHalf(block.d), m = loadHalf(block.m);
  uint8_t codes[32];
  unpackNibbles(block.codes, 16, codes);
  unpackFifthBits(block.high, codes);
  for (int i = 0; i < 32; ++i)
    out[i] = d * static_cast<float>(codes[i]) + m;
}

static void decode(const BlockQ8_0 &block, float *out) {
  const float d = loadHalf(block.d);
  for (int i = 0; i < 32; ++i)
    out[i] = static_cast<float>(block.codes[i]) * d;
}

/// The values of q4_K and q5_K.
template <typename Block>
static void decodeParts(const Block &block, const uint8_t *codes, float *out) {
  const float d = loadHalf(block.d), dmin = loadHalf(block.dmin);
  const PartScales parts = unpackScales(block.scales);
  for (int i = 0; i < kSuper; ++i) {
    const float scale = d * static_cast<float>(parts.scale[i / 32]);
    const float least = dmin * static_cast<float>(parts.least[i / 32]);
    out[i] = scale * static_cast<float>(codes[i]) - least;
  }
}

static void decode(const BlockQ4_K &block, float *out) {
  uint8_t codes[kSuper];
  unpackRuns(block.codes, codes);
  decodeParts(block, codes, out);
}

static void decode(const BlockQ5_K &block, float *out) {
  uint8_t codes[kSuper];
  unpackRuns(block.codes, codes);
  unpackPartBits(block.high, codes);
  decodeParts(block, codes, out);
}

static void decode(const BlockQ6_K &block, float *out) {
  const float d = loadHalf(block.d);
  uint8_t codes[kSuper];
  unpackSixBits(block, codes);
  for (int i = 0; i < kSuper; ++i) {
    const float scale = d * static_cast<float>(block.scales[i / 16]);
    out[i] = scale * static_cast<float>(codes[i] - 32);
  }
}

template <typename Block>
static void decodeAll(const uint8_t *from, int64_t count, int64_t values,
                      float *out) {
  const int64_t blocks = count / values;
  parallelRanges(blocks, rowGrain(values), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Block block;
      std::memcpy(&block, from + i * static_cast<int64_t>(sizeof(Block)),
                  sizeof(Block));
      decode(block, out + i * values);
    }
  });
}

void dequantizeGguf(GgufType type, const uint8_t *from, int64_t count,
                    float *out) {
  assert(count % ggufTypeInfo(type).blockValues == 0 && "whole blocks");
  switch (type) {
  case GgufType::kF32:
    return widen(QLORA_DTYPE_F32, from, out, count);
  case GgufType::kF16:
    return widen(QLORA_DTYPE_F16, from, out, count);
  case GgufType::kBF16:
    return widen(QLORA_DTYPE_BF16, from, out, count);
  case GgufType::kQ4_0:
    return decodeAll<BlockQ4_0>(from, count, 32, out);
  case GgufType::kQ5_0:
    return decodeAll<BlockQ5_0>(from, count, 32, out);
  case GgufType::kQ5_1:
    return decodeAll<BlockQ5_1>(from, count, 32, out);
  case GgufType::kQ8_0:
    return decodeAll<BlockQ8_0>(from, count, 32, out);
  case GgufType::kQ4_K:
    return decodeAll<BlockQ4_K>(from, count, kSuper, out);
  case GgufType::kQ5_K:
    return decodeAll<BlockQ5_K>(from, count, kSuper, out);
  case GgufType::kQ6_K:
    return decodeAll<BlockQ6_K>(from, count, kSuper, out);
  }
}

} // namespace qlora
