// SPDX-License-Identifier: MIT

// The quantiser and plain decoder of NF4.h's layout. Every f32 operation is
// rounded on its own (this file is compiled with -ffp-contract=off).

#include "runtime/Kernels/Cpu/QuantizeNF4.h"

#include "runtime/Kernels/Math/NF4Scales.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

namespace qlora {

/// What bitsandbytes raises a block's absmax to before it divides by it. A
/// denormal, so that only an all-zero block changes.
static constexpr float kSmallestAbsmax = 1e-38f;
/// Elements between two calls of NF4Source::done: enough that starting the
/// threads does not show, few enough that their pages do not either.
static constexpr int64_t kWindowElements = int64_t{1} << 22;

const std::array<float, 16> &nf4CodeBook() {
  static constexpr std::array<float, 16> book = {
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
  return book;
}

/// Sign, 7 dynamic exponents, and for exponent e 2^e fractions: the middles
/// of as many parts of [0.1, 1], times 10^(e-6) (Dettmers, "8-bit
/// Approximations for Parallelism in Deep Learning", 2015).
static std::array<float, 256> makeDynamicMap() {
  std::array<float, 256> map{};
  size_t count = 0;
  for (int exponent = 0; exponent < 7; ++exponent) {
    const int parts = 1 << exponent;
    const float step = (1.0f - 0.1f) / static_cast<float>(parts);
    // The grid is built from both ends and fused, as torch.linspace does.
    auto boundary = [&](int i) {
      return i < (parts + 1) / 2
                 ? std::fma(step, static_cast<float>(i), 0.1f)
                 : std::fma(-step, static_cast<float>(parts - i), 1.0f);
    };
    const auto power = static_cast<float>(std::pow(10.0, exponent - 6));
    for (int i = 0; i < parts; ++i) {
      const float mean = (boundary(i) + boundary(i + 1)) / 2.0f;
      map[count++] = power * mean;
      map[count++] = -power * mean;
    }
  }
  map[count++] = 0.0f;
  map[count++] = 1.0f;
  assert(count == map.size());
  std::sort(map.begin(), map.end());
  return map;
}

const std::array<float, 256> &nf4DynamicMap() {
  static const std::array<float, 256> map = makeDynamicMap();
  return map;
}

/// Nearest map entry of each of 65,536 evenly spaced values in [-1, 1].
static const std::array<uint8_t, 65536> &nestedCodes() {
  static const auto codes = [] {
    auto table = std::make_unique<std::array<uint8_t, 65536>>();
    const std::array<float, 256> &map = nf4DynamicMap();
    size_t nearest = 0;
    for (size_t i = 0; i < table->size(); ++i) {
      const double value = static_cast<double>(i) / 65535.0 * 2.0 - 1.0;
      while (nearest + 1 < map.size() && std::abs(map[nearest + 1] - value) <
                                             std::abs(map[nearest] - value))
        ++nearest;
      (*table)[i] = static_cast<uint8_t>(nearest);
    }
    return table;
  }();
  return *codes;
}

/// Largest magnitude; a NaN wins, as in torch. Compares bits, which order
/// like magnitudes.
static float absmaxOf(const float *values, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<int32_t>(values[i]) & 0x7fffffff);
  return std::bit_cast<float>(largest);
}

/// codes[i] := number of midpoints below values[i].
static void countMidpoints(const float *values, int64_t count, int32_t *codes) {
  const std::array<float, 16> &book = nf4CodeBook();
  std::fill_n(codes, count, 0);
  for (size_t m = 0; m + 1 < book.size(); ++m) {
    const float middle = (book[m] + book[m + 1]) / 2.0f;
    for (int64_t i = 0; i < count; ++i)
      codes[i] += values[i] > middle ? 1 : 0;
  }
}

/// Quantises one block in place of `values`, which has room for one more
/// element; returns its scale.
static float quantizeBlock(const NF4Layout &layout, int64_t count,
                           float *values, int32_t *codes, uint8_t *packed) {
  float absmax = absmaxOf(values, count);
  const float divisor = absmax < kSmallestAbsmax ? kSmallestAbsmax : absmax;
  if (count == layout.block) {
    const float inverse = 1.0f / divisor;
    for (int64_t i = 0; i < count; ++i)
      values[i] = std::clamp(values[i] * inverse, -1.0f, 1.0f);
  } else {
    absmax = divisor;
    for (int64_t i = 0; i < count; ++i)
      values[i] = std::clamp(values[i] / divisor, -1.0f, 1.0f);
  }
  if (count % 2 != 0)
    values[count++] = 0.0f;
  countMidpoints(values, count, codes);
  for (int64_t i = 0; i < count; i += 2)
    packed[i / 2] = static_cast<uint8_t>(codes[i] << 4 | codes[i + 1]);
  return absmax;
}

/// Packs blocks [begin, end) and writes their scales.
static void quantizeBlocks(const NF4Layout &layout, const NF4Source &source,
                           int64_t begin, int64_t end, uint8_t *packed,
                           float *scales) {
#pragma omp parallel
  {
    std::vector<float> values(static_cast<size_t>(layout.block) + 1);
    std::vector<int32_t> codes(values.size());
#pragma omp for schedule(static)
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * layout.block;
      const int64_t count = std::min(layout.block, layout.elements - first);
      source.read(first, count, values.data());
      scales[block] = quantizeBlock(layout, count, values.data(), codes.data(),
                                    packed + first / 2);
    }
  }
}

/// Packs all elements, a window after the other; scales f32 [blocks].
static void quantizeElements(const NF4Layout &layout, const NF4Source &source,
                             uint8_t *packed, float *scales) {
  const int64_t window = std::max<int64_t>(1, kWindowElements / layout.block);
  for (int64_t begin = 0; begin < layout.blocks; begin += window) {
    const int64_t end = std::min(begin + window, layout.blocks);
    quantizeBlocks(layout, source, begin, end, packed, scales);
    const int64_t first = begin * layout.block;
    if (source.done)
      source.done(first, std::min(end * layout.block, layout.elements) - first);
  }
}

static uint8_t nestedCode(float value, float inverse) {
  const float v = std::clamp(value * inverse, -1.0f, 1.0f);
  // NaN has no bucket; its block decodes to NaN through its absmax.
  if (std::isnan(v))
    return 0;
  const float bucket = (v + 1.0f) * 0.5f * 65535.0f + 0.5f;
  return nestedCodes()[static_cast<size_t>(bucket)];
}

void quantizeNF4Scales(const NF4Layout &layout, std::span<const float> scales,
                       float offset, uint8_t *out) {
  assert(layout.doubleQuant &&
         scales.size() == static_cast<size_t>(layout.blocks));
  std::array<float, kNF4NestedBlock> shifted;
  auto *absmax = reinterpret_cast<float *>(out + layout.nestedAbsmax);
  for (int64_t n = 0; n < layout.nestedBlocks; ++n) {
    const int64_t begin = n * kNF4NestedBlock;
    const int64_t count = std::min(kNF4NestedBlock, layout.blocks - begin);
    for (int64_t i = 0; i < count; ++i)
      shifted[static_cast<size_t>(i)] =
          scales[static_cast<size_t>(begin + i)] - offset;
    absmax[n] = absmaxOf(shifted.data(), count);
    const float inverse = 1.0f / absmax[n];
    uint8_t *codes = out + layout.scales + begin;
    for (int64_t i = 0; i < count; ++i)
      codes[i] = absmax[n] == 0.0f
                     ? 0
                     : nestedCode(shifted[static_cast<size_t>(i)], inverse);
  }
  std::memcpy(out + layout.nestedMap, nf4DynamicMap().data(),
              sizeof(nf4DynamicMap()));
  std::memcpy(out + layout.offset, &offset, sizeof(offset));
}

void quantizeNF4(const NF4Layout &layout, const NF4Source &source,
                 uint8_t *out) {
  std::memset(out + layout.scales, 0,
              static_cast<size_t>(layout.bytes - layout.scales));
  std::memset(out + (layout.elements + 1) / 2, 0,
              static_cast<size_t>(layout.scales - (layout.elements + 1) / 2));
  std::memcpy(out + layout.codeBook, nf4CodeBook().data(),
              sizeof(nf4CodeBook()));
  if (!layout.doubleQuant) {
    quantizeElements(layout, source, out,
                     reinterpret_cast<float *>(out + layout.scales));
    return;
  }
  std::vector<float> scales(static_cast<size_t>(layout.blocks));
  quantizeElements(layout, source, out, scales.data());
  double sum = 0;
  for (float scale : scales)
    sum += scale;
  const double mean = sum / static_cast<double>(layout.blocks);
  quantizeNF4Scales(layout, scales, static_cast<float>(mean), out);
}

void quantizeNF4(const NF4Layout &layout, const float *elements, uint8_t *out) {
  quantizeNF4(layout,
              {[elements](int64_t first, int64_t count, float *values) {
                 std::memcpy(values, elements + first,
                             static_cast<size_t>(count) * sizeof(float));
               },
               nullptr},
              out);
}

void decodeNF4Scales(const NF4Layout &layout, const uint8_t *tensor,
                     float *scales) {
  if (!layout.doubleQuant) {
    std::memcpy(scales, tensor + layout.scales,
                static_cast<size_t>(layout.blocks) * sizeof(float));
    return;
  }
  const uint8_t *codes = tensor + layout.scales;
  const auto *absmax =
      reinterpret_cast<const float *>(tensor + layout.nestedAbsmax);
  const auto *map = reinterpret_cast<const float *>(tensor + layout.nestedMap);
  float offset = 0;
  std::memcpy(&offset, tensor + layout.offset, sizeof(offset));
  for (int64_t i = 0; i < layout.blocks; ++i)
    scales[i] = map[codes[i]] * absmax[i / kNF4NestedBlock] + offset;
}

void decodeNF4(const NF4Layout &layout, const uint8_t *tensor,
               const float *scales, int64_t columns, int64_t first,
               int64_t count, float *out) {
  const auto *book = reinterpret_cast<const float *>(tensor + layout.codeBook);
  int64_t element = first;
  while (element < first + count) {
    const float scale = scales[nf4ScaleIndex(columns, layout.block, element)];
    const int64_t end =
        std::min(nf4ScaleRunEnd(columns, layout.block, element), first + count);
    for (; element < end; ++element) {
      const uint8_t byte = tensor[element / 2];
      const unsigned code = element % 2 == 0 ? byte >> 4 : byte & 15;
      out[element - first] = book[code] * scale;
    }
  }
}

} // namespace qlora
