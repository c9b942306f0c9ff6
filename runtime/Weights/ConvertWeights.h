// SPDX-License-Identifier: MIT

// Conversion of weights between f32, bf16 and f16, rounded to nearest even,
// from unaligned to aligned bytes.

#ifndef QLORA_RUNTIME_WEIGHTS_CONVERTWEIGHTS_H
#define QLORA_RUNTIME_WEIGHTS_CONVERTWEIGHTS_H

#include <cstdint>

#include "runtime/ABI/kernel.h"

namespace qlora {

/// Returns the bytes of an element; 0 if `dtype` is not f32, bf16 or f16.
unsigned weightBytes(qlora_dtype dtype);

/// Converts `count` elements of `dtype` at `from` to f32.
void weightsToFloat(qlora_dtype dtype, const uint8_t *from, int64_t count,
                    float *out);
/// Converts `count` f32 elements to `dtype`, rounded to nearest even.
void weightsFromFloat(qlora_dtype dtype, const float *from, int64_t count,
                      uint8_t *out);
/// Transposes a [rows, columns] matrix. Uses OpenMP threads.
void turnWeights(qlora_dtype dtype, const uint8_t *from, int64_t rows,
                 int64_t columns, uint8_t *to);
/// Converts between two types; copies if they are equal. Uses OpenMP threads.
void convertWeights(qlora_dtype fromType, const uint8_t *from,
                    qlora_dtype toType, uint8_t *to, int64_t count);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_CONVERTWEIGHTS_H
