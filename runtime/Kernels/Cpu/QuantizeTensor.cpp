// SPDX-License-Identifier: MIT

// Quantizes window by window, then the scales. Every f32 operation is rounded
// separately (this file is compiled with -ffp-contract=off).

#include "runtime/Kernels/Cpu/QuantizeTensor.h"

#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/QuantizeBlock.h"
#include "runtime/Kernels/Math/NF4Quantize.h"
#include "runtime/Kernels/StoredTables.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <memory>
#include <vector>

namespace qlora {

static std::array<float, 256> makeDynamicMap() {
  std::array<float, 256> map{};
  for (size_t code = 0; code < map.size(); ++code)
    map[code] = dynamicMapValue(/*isSigned=*/true, static_cast<int>(code));
  return map;
}

const std::array<float, 256> &nf4DynamicMap() {
  static const std::array<float, 256> map = makeDynamicMap();
  return map;
}

/// Returns the nearest code of the dynamic map for each bucket of nf4Bucket().
static const std::array<uint8_t, 65536> &nestedCodes() {
  static const auto codes = [] {
    auto table = std::make_unique<std::array<uint8_t, 65536>>();
    for (size_t i = 0; i < table->size(); ++i)
      (*table)[i] =
          nf4NearestCode(nf4DynamicMap().data(), static_cast<int32_t>(i));
    return table;
  }();
  return *codes;
}

bool isQuantizer(qlora_dtype dtype) { return findQuantizer(dtype); }

bool hasDeviceQuantizer(qlora_dtype dtype) {
  const Quantizer *quantizer = findQuantizer(dtype);
  return quantizer && quantizer->isOnDevice;
}

/// Packs blocks [begin, end) and writes their scales.
static void quantizeRange(const StoredLayout &layout,
                          const ElementSource &source, int64_t begin,
                          int64_t end, uint8_t *packed, float *scales) {
  const int64_t block = layout.block;
  const auto quantizeBlock = findQuantizer(layout.dtype)->run;
  parallelRanges(end - begin, 1, [&](int64_t from, int64_t to) {
    std::vector<float> values(static_cast<size_t>(block) + 1);
    std::vector<int32_t> codes(values.size());
    for (int64_t index = begin + from; index < begin + to; ++index) {
      const int64_t first = index * block;
      const int64_t count = std::min(block, layout.elements - first);
      source.read(first, count, values.data());
      scales[index] = quantizeBlock(block, count, values.data(), codes.data(),
                                    packed + layout.bytesOf(first));
    }
  });
}

void quantizeBlocks(const StoredLayout &layout, const ElementSource &source,
                    uint8_t *packed, float *scales) {
  const int64_t block = layout.block, blocks = layout.blocks;
  const int64_t window = std::max<int64_t>(1, kQuantizedWindow / block);
  for (int64_t begin = 0; begin < blocks; begin += window) {
    const int64_t end = std::min(begin + window, blocks);
    const int64_t first = begin * block;
    if (source.fetch)
      source.fetch(first, std::min(end * block, layout.elements) - first);
    quantizeRange(layout, source, begin, end, packed, scales);
  }
}

float nf4ScaleOffset(std::span<const float> scales) {
  std::array<double, kNF4MeanPartials> partials{};
  for (size_t first = 0; first < scales.size(); first += partials.size()) {
    const size_t count = std::min(partials.size(), scales.size() - first);
    for (size_t p = 0; p < count; ++p)
      partials[p] += static_cast<double>(scales[first + p]);
  }
  for (size_t half = partials.size() / 2; half > 0; half /= 2)
    for (size_t p = 0; p < half; ++p)
      partials[p] += partials[p + half];
  return nf4Offset(partials[0], static_cast<int64_t>(scales.size()));
}

/// Quantizes a run of scales; returns the largest magnitude of scale - offset.
template <typename Code>
static float quantizeRun(std::span<const float> scales, float offset, Code code,
                         uint8_t *codes) {
  std::array<float, kNestedRun> shifted;
  const auto count = static_cast<int64_t>(scales.size());
  for (size_t i = 0; i < scales.size(); ++i)
    shifted[i] = nf4Shifted(scales[i], offset);
  const float absmax = largestMagnitude(shifted.data(), count);
  const float inverse = 1.0f / absmax;
  for (size_t i = 0; i < scales.size(); ++i) {
    const int32_t bucket = absmax == 0.0f ? -1 : nf4Bucket(shifted[i], inverse);
    codes[i] = bucket < 0 ? uint8_t{0} : code(bucket);
  }
  return absmax;
}

template <typename Code>
static void quantizeRuns(std::span<const float> scales, float offset, Code code,
                         uint8_t *codes, float *absmax) {
  for (size_t begin = 0; begin < scales.size(); begin += kNestedRun) {
    const size_t count = std::min<size_t>(kNestedRun, scales.size() - begin);
    *absmax++ =
        quantizeRun(scales.subspan(begin, count), offset, code, codes + begin);
  }
}

void quantizeScales(std::span<const float> scales, float offset,
                       const float *map, uint8_t *codes, float *absmax) {
  quantizeRuns(
      scales, offset,
      [map](int32_t bucket) { return nf4NearestCode(map, bucket); }, codes,
      absmax);
}

void quantizeScales(const StoredLayout &layout, std::span<const float> scales,
                       float offset, uint8_t *out) {
  assert(layout.doubleQuant &&
         scales.size() == static_cast<size_t>(layout.blocks));
  const auto &codes = nestedCodes();
  quantizeRuns(
      scales, offset,
      [&](int32_t bucket) { return codes[static_cast<size_t>(bucket)]; },
      out + layout.scales,
      reinterpret_cast<float *>(out + layout.nestedAbsmax));
  std::memcpy(out + layout.nestedMap, nf4DynamicMap().data(),
              sizeof(nf4DynamicMap()));
  std::memcpy(out + layout.correction, &offset, sizeof(offset));
}

void quantizeStored(const StoredLayout &layout, const ElementSource &source,
                    uint8_t *out) {
  std::memset(out + layout.packedBytes, 0,
              static_cast<size_t>(layout.bytes - layout.packedBytes));
  writeTables(layout, out);
  if (!layout.doubleQuant)
    return quantizeBlocks(layout, source, out,
                          reinterpret_cast<float *>(out + layout.scales));
  std::vector<float> scales(static_cast<size_t>(layout.blocks));
  quantizeBlocks(layout, source, out, scales.data());
  if (layout.format().codedScales == CodedScales::kAlways) {
    // A scale is a power of two, of which the exponent is stored.
    for (size_t i = 0; i < scales.size(); ++i)
      out[layout.scales + static_cast<int64_t>(i)] =
          static_cast<uint8_t>(std::bit_cast<uint32_t>(scales[i]) >> 23);
    return;
  }
  quantizeScales(layout, scales, nf4ScaleOffset(scales), out);
}

void quantizeStored(const StoredLayout &layout, const float *elements,
                    uint8_t *out) {
  quantizeStored(layout,
              {[elements](int64_t first, int64_t count, float *values) {
                 std::memcpy(values, elements + first,
                             static_cast<size_t>(count) * sizeof(float));
               },
               nullptr},
              out);
}

} // namespace qlora
