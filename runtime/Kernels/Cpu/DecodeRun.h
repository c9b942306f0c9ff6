// SPDX-License-Identifier: MIT

// NF4 numbers that share one scale, by AVX-512: 32 bf16 or 16 f32 numbers are
// one table look-up in a register. The bits are those of NF4Tensor::element,
// rounded to nearest even.

#ifndef QLORA_RUNTIME_KERNELS_CPU_DECODERUN_H
#define QLORA_RUNTIME_KERNELS_CPU_DECODERUN_H

#include <cstdint>

namespace qlora {

/// Whether this CPU has what decodeRun needs.
bool hasDecodeRun();

/// out[i] := codeBook[code i] * scale for `count` codes, the first in the high
/// nibble of packed[0]; 16 values in the code book. Reads no byte beyond the
/// last code, writes no number beyond `count`.
void decodeRun(const float *codeBook, float scale, const uint8_t *packed,
               int64_t count, float *out);
/// The same in bf16.
void decodeRun(const float *codeBook, float scale, const uint8_t *packed,
               int64_t count, uint16_t *out);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_DECODERUN_H
