// SPDX-License-Identifier: MIT

// Which formats weights become when they are loaded, and the quantiser of one
// block of each (QuantizeStored.h says whose bytes).

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
  /// Up to `block` elements, of which `values` and `codes` have room for one more
  /// and are written over; returns the scale.
  float (*run)(int64_t block, int64_t count, float *values, int32_t *codes,
               uint8_t *packed);
  bool isOnDevice; ///< also the ops quantize and quantize_scales
};

/// Null where no quantiser is there.
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
