// SPDX-License-Identifier: MIT

// The formats that weights can be quantized to on load, and each format's
// quantizer of one block (QuantizeTensor.h lists the reference of each).

#ifndef QLORA_RUNTIME_KERNELS_CPU_QUANTIZEBLOCK_H
#define QLORA_RUNTIME_KERNELS_CPU_QUANTIZEBLOCK_H

#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/ABI/kernel.h"
#include "runtime/Kernels/Math/NF4Quantize.h"

namespace qlora {

struct Quantizer {
  qlora_dtype dtype;
  /// Quantizes `count` <= `block` elements and returns their scale. `values`
  /// and `codes` have space for one more element and are overwritten.
  float (*run)(int64_t block, int64_t count, float *values, int32_t *codes,
               uint8_t *packed);
  bool isOnDevice; ///< whether Kernels.def's op `quantize` has this format
};

/// Returns null if the format has no quantizer.
const Quantizer *findQuantizer(qlora_dtype dtype);

[[gnu::always_inline]] inline float largestMagnitude(const float *values,
                                                     int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i)
    largest = std::max(largest, nf4Magnitude(values[i]));
  return std::bit_cast<float>(largest);
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_QUANTIZEBLOCK_H
