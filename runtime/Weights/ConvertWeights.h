// SPDX-License-Identifier: MIT

// Conversion of weights between f32, bf16 and f16, to nearest even, from
// bytes that need not be aligned to bytes that are.

#ifndef QLORA_RUNTIME_WEIGHTS_CONVERTWEIGHTS_H
#define QLORA_RUNTIME_WEIGHTS_CONVERTWEIGHTS_H

#include <cstdint>

#include "runtime/ABI/kernel.h"

namespace qlora {

/// Bytes of one element; 0 for what is no floating type of weights.
unsigned weightBytes(qlora_dtype dtype);

/// out[0, count) := elements of `dtype` at `from`, as f32.
void weightsToFloat(qlora_dtype dtype, const uint8_t *from, int64_t count,
                    float *out);
/// The reverse.
void weightsFromFloat(qlora_dtype dtype, const float *from, int64_t count,
                      uint8_t *out);
/// The transpose of [rows, columns]. Uses the OpenMP threads.
void turnWeights(qlora_dtype dtype, const uint8_t *from, int64_t rows,
                 int64_t columns, uint8_t *to);
/// Any to any; equal types are copied bit for bit. Uses the OpenMP threads.
void convertWeights(qlora_dtype fromType, const uint8_t *from,
                    qlora_dtype toType, uint8_t *to, int64_t count);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_CONVERTWEIGHTS_H
