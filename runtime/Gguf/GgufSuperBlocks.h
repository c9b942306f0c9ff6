// SPDX-License-Identifier: MIT

// Quantizes to the types with blocks of 256 values, whose parts have quantized
// scales.

#ifndef QLORA_RUNTIME_GGUF_GGUFSUPERBLOCKS_H
#define QLORA_RUNTIME_GGUF_GGUFSUPERBLOCKS_H

#include "runtime/Gguf/GgufBlocks.h"

namespace qlora::gguf {

/// Quantize 256 finite values.
void encode(const float *x, BlockQ4_K &out);
void encode(const float *x, BlockQ5_K &out);
void encode(const float *x, BlockQ6_K &out);

} // namespace qlora::gguf

#endif // QLORA_RUNTIME_GGUF_GGUFSUPERBLOCKS_H
