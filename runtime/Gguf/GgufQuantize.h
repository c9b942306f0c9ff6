// SPDX-License-Identifier: MIT

// Conversion of f32 values to and from GGUF's element types.
//
// A block's codes and scales minimize the sum of squared errors, by a search:
// several scales are tried, each gives codes, and the codes give the best scale
// by least squares (GgufScales.h). The bits do not depend on the machine or the
// number of threads.

#ifndef QLORA_RUNTIME_GGUF_GGUFQUANTIZE_H
#define QLORA_RUNTIME_GGUF_GGUFQUANTIZE_H

#include <cstdint>

#include "runtime/Base/Status.h"
#include "runtime/Gguf/GgufType.h"

namespace qlora {

/// Quantizes rows of `columns` values, which are whole blocks, to
/// ggufBytes(type, rows * columns) bytes. Refuses values that are not finite
/// or too large for the type; the message names row and column, and the caller
/// adds the tensor's name. Uses OpenMP threads.
Status quantizeGguf(GgufType type, const float *values, int64_t rows,
                    int64_t columns, uint8_t *out);

/// Converts `count` values, which are whole blocks, back to f32, with the bits
/// of the Python package gguf. Uses OpenMP threads.
void dequantizeGguf(GgufType type, const uint8_t *from, int64_t count,
                    float *out);

} // namespace qlora

#endif // QLORA_RUNTIME_GGUF_GGUFQUANTIZE_H
