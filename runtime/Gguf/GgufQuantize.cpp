// SPDX-License-Identifier: MIT

// Quantizes to the types with blocks of 32 values, and dispatches all types.

#include "runtime/Gguf/GgufQuantize.h"

#include "runtime/Gguf/GgufBlocks.h"
#include "runtime/Gguf/GgufScales.h"
#include "runtime/Gguf/GgufSuperBlocks.h"
#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Parallel.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace qlora {

using namespace gguf;

/// Finds d of a block whose codes are in [low, high]. Returns its f16 value.
QLORA_INLINE static float storeScale(const float *x, float low, float high,
                                     uint8_t (&out)[2]) {
  return storeHalf(findScale<32>(x, low, high), out);
}

/// Codes, plus `bias`, of a block for an f16 scale; 0 if the scale is 0.
QLORA_INLINE static void codesFor(const float *x, float d, float low,
                                  float high, float bias, uint8_t *codes) {
  storeCodes<32>(x, 0, d != 0 ? 1 / d : 0, low, high, bias, codes);
}

QLORA_VECTOR static void encode(const float *x, BlockQ4_0 &out) {
  uint8_t codes[32];
  codesFor(x, storeScale(x, -8, 7, out.d), -8, 7, 8, codes);
  packNibbles(codes, 16, out.codes);
}

QLORA_VECTOR static void encode(const float *x, BlockQ5_0 &out) {
  uint8_t codes[32];
  codesFor(x, storeScale(x, -16, 15, out.d), -16, 15, 16, codes);
  packNibbles(codes, 16, out.codes);
  packFifthBits(codes, out.high);
}

/// The offset of q5_1 may have either sign. So the block is shifted to a least
/// value of 0 before the search, and m is the sum of the shift and the found
/// offset.
QLORA_VECTOR static void encode(const float *x, BlockQ5_1 &out) {
  const float low = *std::min_element(x, x + 32);
  float shifted[32];
  for (int i = 0; i < 32; ++i)
    shifted[i] = x[i] - low;
  const PartFit fit = findPart<32>(shifted, 31);
  const float d = storeHalf(fit.scale, out.d);
  const float m = storeHalf(low - fit.least, out.m);
  uint8_t codes[32];
  storeCodes<32>(x, -m, d != 0 ? 1 / d : 0, 0, 31, 0, codes);
  packNibbles(codes, 16, out.codes);
  packFifthBits(codes, out.high);
}

/// Eight bits are enough without a search.
QLORA_VECTOR static void encode(const float *x, BlockQ8_0 &out) {
  const float d = storeHalf(std::abs(largestOf<32>(x)) / 127, out.d);
  codesFor(x, d, -127, 127, 0, reinterpret_cast<uint8_t *>(out.codes));
}

template <typename Block>
static void encodeAll(const float *values, int64_t rows, int64_t columns,
                      int64_t blockValues, uint8_t *out) {
  const int64_t blocks = rows * columns / blockValues;
  parallelRanges(blocks, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Block block;
      encode(values + i * blockValues, block);
      std::memcpy(out + i * static_cast<int64_t>(sizeof(Block)), &block,
                  sizeof(Block));
    }
  });
}

static Status checkValues(const GgufTypeInfo &info, const float *values,
                          int64_t rows, int64_t columns) {
  const int64_t count = rows * columns;
  const float *const wrong =
      std::find_if(values, values + count, [&](float value) {
        return !(std::abs(value) <= info.largest);
      });
  if (wrong == values + count)
    return Status::ok();
  const int64_t index = wrong - values;
  const int64_t row = index / columns, column = index % columns;
  if (!std::isfinite(*wrong))
    return Status::invalid("value {} at row {}, column {} is not a number "
                           "that a model can have; the run diverged: export "
                           "an earlier checkpoint",
                           *wrong, row, column);
  return Status::invalid("value {} at row {}, column {} is above {}, the "
                         "largest of {}; use --outtype bf16",
                         *wrong, row, column, info.largest, info.name);
}

Status quantizeGguf(GgufType type, const float *values, int64_t rows,
                    int64_t columns, uint8_t *out) {
  const GgufTypeInfo &info = ggufTypeInfo(type);
  assert(columns % info.blockValues == 0 && "rows have whole blocks");
  QLORA_RETURN_IF_ERROR(checkValues(info, values, rows, columns));
  const auto encodeBlocks = [&]<typename Block>(Block) {
    encodeAll<Block>(values, rows, columns, info.blockValues, out);
  };
  const auto round = [&](qlora_dtype dtype) {
    parallelRanges(rows, rowGrain(columns), [&](int64_t begin, int64_t end) {
      narrow(values + begin * columns, dtype,
             elementAt(out, dtype, begin * columns), (end - begin) * columns);
    });
  };
  switch (type) {
  case GgufType::kF32:
    round(QLORA_DTYPE_F32);
    break;
  case GgufType::kF16:
    round(QLORA_DTYPE_F16);
    break;
  case GgufType::kBF16:
    round(QLORA_DTYPE_BF16);
    break;
  case GgufType::kQ4_0:
    encodeBlocks(BlockQ4_0());
    break;
  case GgufType::kQ5_0:
    encodeBlocks(BlockQ5_0());
    break;
  case GgufType::kQ5_1:
    encodeBlocks(BlockQ5_1());
    break;
  case GgufType::kQ8_0:
    encodeBlocks(BlockQ8_0());
    break;
  case GgufType::kQ4_K:
    encodeBlocks(BlockQ4_K());
    break;
  case GgufType::kQ5_K:
    encodeBlocks(BlockQ5_K());
    break;
  case GgufType::kQ6_K:
    encodeBlocks(BlockQ6_K());
    break;
  }
  return Status::ok();
}

} // namespace qlora
