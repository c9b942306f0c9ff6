// SPDX-License-Identifier: MIT

// Quantizes blocks of 256 values. Each part is first fitted separately
// (GgufScales.h). Then the block's f16 scales are chosen for the largest part,
// and every part takes the quantized scale with the least error among the
// neighbours of its fitted one. Last, with all codes fixed, least squares gives
// better f16 scales; they are used if the error falls.

#include "runtime/Gguf/GgufSuperBlocks.h"

#include "runtime/Gguf/GgufScales.h"
#include "runtime/Kernels/Cpu/Parallel.h"

#include <algorithm>

namespace qlora::gguf {

/// Returns the f16 value nearest to `wanted` / `codes`, or the next larger one
/// if that many codes would not reach `wanted`. Not negative.
QLORA_INLINE static float halfScale(float wanted, float codes) {
  const auto nearest = static_cast<_Float16>(wanted / codes);
  const auto value = static_cast<float>(nearest);
  if (value * (codes + 0.5f) >= wanted)
    return value;
  // Not negative and finite: the next larger number has the next bits.
  uint16_t bits;
  std::memcpy(&bits, &nearest, sizeof(bits));
  ++bits;
  _Float16 next;
  std::memcpy(&next, &bits, sizeof(next));
  return static_cast<float>(next);
}

QLORA_INLINE static float toHalf(float value) {
  return static_cast<float>(static_cast<_Float16>(value));
}

/// Returns the code of `value` in steps of `step`, moved by `by`.
QLORA_INLINE static int neighbour(float value, float step, int by, int low,
                                  int high) {
  const float code = step != 0 ? value / step : 0;
  return std::clamp(static_cast<int>(std::lrint(code)) + by, low, high);
}

// q4_K and q5_K ---------------------------------------------------------------

/// Quantized parameters of a block.
struct Offsets {
  float d = 0, dmin = 0;
  PartScales parts;
};

QLORA_INLINE static float blockError(const float *x, const Offsets &block,
                                     float high) {
  float error = 0;
  for (int part = 0; part < 8; ++part)
    error += partError<32>(
        x + 32 * part, block.d * static_cast<float>(block.parts.scale[part]),
        block.dmin * static_cast<float>(block.parts.least[part]), 0, high);
  return error;
}

/// Chooses the part's scale and least value among the neighbours of its fit.
QLORA_INLINE static void choosePart(const float *x, const PartFit &fit,
                                    int part, float high, Offsets &block) {
  float bestError = -1;
  for (int byScale = -1; byScale <= 1; ++byScale)
    for (int byLeast = -1; byLeast <= 1; ++byLeast) {
      const int scale = neighbour(fit.scale, block.d, byScale, 0, 63);
      const int least = neighbour(fit.least, block.dmin, byLeast, 0, 63);
      const float error =
          partError<32>(x, block.d * static_cast<float>(scale),
                        block.dmin * static_cast<float>(least), 0, high);
      if (bestError < 0 || error < bestError) {
        bestError = error;
        block.parts.scale[part] = static_cast<uint8_t>(scale);
        block.parts.least[part] = static_cast<uint8_t>(least);
      }
    }
}

/// Returns the block with d and dmin by least squares for its present codes:
/// x = d * (scale * code) - dmin * least.
QLORA_INLINE static Offsets refit(const float *x, const Offsets &block,
                                  float high) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
  for (int part = 0; part < 8; ++part) {
    const float scale = block.d * static_cast<float>(block.parts.scale[part]);
    const float least =
        block.dmin * static_cast<float>(block.parts.least[part]);
    uint8_t codes[32];
    storeCodes<32>(x + 32 * part, least, scale != 0 ? 1 / scale : 0, 0, high, 0,
                   codes);
    const int b = block.parts.least[part];
    for (int i = 0; i < 32; ++i) {
      const int a = codes[i] * block.parts.scale[part];
      const double value = x[32 * part + i];
      aa += a * a;
      ab += a * b;
      bb += b * b;
      ax += a * value;
      bx += b * value;
    }
  }
  Offsets fitted = block;
  const double determinant = aa * bb - ab * ab;
  if (determinant > 0) {
    fitted.d = toHalf(static_cast<float>((ax * bb - ab * bx) / determinant));
    fitted.dmin = toHalf(static_cast<float>((ab * ax - aa * bx) / determinant));
  } else if (aa > 0) {
    fitted.d = toHalf(static_cast<float>((ax + block.dmin * ab) / aa));
  }
  return fitted;
}

QLORA_INLINE static Offsets findOffsets(const float *x, float high) {
  PartFit fits[8];
  float scale = 0, least = 0;
  for (int part = 0; part < 8; ++part) {
    fits[part] = findPart<32>(x + 32 * part, high);
    scale = std::max(scale, fits[part].scale);
    least = std::max(least, fits[part].least);
  }
  Offsets block{halfScale(scale, 63), halfScale(least, 63), {}};
  for (int part = 0; part < 8; ++part)
    choosePart(x + 32 * part, fits[part], part, high, block);
  float error = blockError(x, block, high);
  for (int round = 0; round < kRounds; ++round) {
    const Offsets fitted = refit(x, block, high);
    if (!(fitted.d >= 0 && fitted.dmin >= 0))
      break;
    const float fittedError = blockError(x, fitted, high);
    if (!(fittedError < error))
      break;
    block = fitted;
    error = fittedError;
  }
  return block;
}

template <typename Block>
QLORA_INLINE static void encodeOffsets(const float *x, float high,
                                       uint8_t *codes, Block &out) {
  const Offsets block = findOffsets(x, high);
  storeHalf(block.d, out.d);
  storeHalf(block.dmin, out.dmin);
  packScales(block.parts, out.scales);
  for (int part = 0; part < 8; ++part) {
    const float scale = block.d * static_cast<float>(block.parts.scale[part]);
    storeCodes<32>(x + 32 * part,
                   block.dmin * static_cast<float>(block.parts.least[part]),
                   scale != 0 ? 1 / scale : 0, 0, high, 0, codes + 32 * part);
  }
}

QLORA_VECTOR void encode(const float *x, BlockQ4_K &out) {
  uint8_t codes[kSuper];
  encodeOffsets(x, 15, codes, out);
  packRuns(codes, out.codes);
}

QLORA_VECTOR void encode(const float *x, BlockQ5_K &out) {
  uint8_t codes[kSuper];
  encodeOffsets(x, 31, codes, out);
  packRuns(codes, out.codes);
  packPartBits(codes, out.high);
}

// q6_K ------------------------------------------------------------------------

struct Scales {
  float d = 0;
  int8_t scales[16] = {};

  float of(int part) const { return d * static_cast<float>(scales[part]); }
};

QLORA_INLINE static float blockError(const float *x, const Scales &block) {
  float error = 0;
  for (int part = 0; part < 16; ++part)
    error += partError<16>(x + 16 * part, block.of(part), 0, -32, 31);
  return error;
}

QLORA_INLINE static void choosePart(const float *x, float fitted, int part,
                                    Scales &block) {
  float bestError = -1;
  for (int by = -1; by <= 1; ++by) {
    const int scale = neighbour(fitted, block.d, by, -128, 127);
    const float error =
        partError<16>(x, block.d * static_cast<float>(scale), 0, -32, 31);
    if (bestError < 0 || error < bestError) {
      bestError = error;
      block.scales[part] = static_cast<int8_t>(scale);
    }
  }
}

/// Returns the block with d by least squares for its present codes.
QLORA_INLINE static Scales refit(const float *x, const Scales &block) {
  double aa = 0, ax = 0;
  for (int part = 0; part < 16; ++part) {
    const float scale = block.of(part);
    uint8_t codes[16];
    storeCodes<16>(x + 16 * part, 0, scale != 0 ? 1 / scale : 0, -32, 31, 32,
                   codes);
    for (int i = 0; i < 16; ++i) {
      const int a = (codes[i] - 32) * block.scales[part];
      aa += a * a;
      ax += a * static_cast<double>(x[16 * part + i]);
    }
  }
  Scales fitted = block;
  if (aa > 0)
    fitted.d = toHalf(static_cast<float>(ax / aa));
  return fitted;
}

QLORA_INLINE static Scales findScales(const float *x) {
  float fits[16], positive = 0, negative = 0;
  for (int part = 0; part < 16; ++part) {
    fits[part] = findScale<16>(x + 16 * part, -32, 31);
    positive = std::max(positive, fits[part]);
    negative = std::max(negative, -fits[part]);
  }
  Scales block;
  block.d = std::max(halfScale(positive, 127), halfScale(negative, 128));
  for (int part = 0; part < 16; ++part)
    choosePart(x + 16 * part, fits[part], part, block);
  float error = blockError(x, block);
  for (int round = 0; round < kRounds; ++round) {
    const Scales fitted = refit(x, block);
    const float fittedError = blockError(x, fitted);
    if (!(fittedError < error))
      break;
    block = fitted;
    error = fittedError;
  }
  return block;
}

QLORA_VECTOR void encode(const float *x, BlockQ6_K &out) {
  const Scales block = findScales(x);
  uint8_t codes[kSuper];
  for (int part = 0; part < 16; ++part) {
    const float scale = block.of(part);
    storeCodes<16>(x + 16 * part, 0, scale != 0 ? 1 / scale : 0, -32, 31, 32,
                   codes + 16 * part);
  }
  packSixBits(codes, out);
  std::copy(std::begin(block.scales), std::end(block.scales), out.scales);
  storeHalf(block.d, out.d);
}

} // namespace qlora::gguf
