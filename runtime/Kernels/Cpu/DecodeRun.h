// SPDX-License-Identifier: MIT

// NF4 numbers that share one scale, by AVX-512: 32 bf16 or 16 f32 numbers are
// one table look-up in a register. The bits are those of NF4Tensor::element,
// rounded to nearest even.

#ifndef QLORA_RUNTIME_KERNELS_CPU_DECODERUN_H
#define QLORA_RUNTIME_KERNELS_CPU_DECODERUN_H

#include <cstdint>

namespace qlora {

/// The functions for `count` codes that share a scale, the first in the high
/// nibble of packed[0]: out[i] := codeBook[code i] * scale, of 16 values in the
/// code book. They read no byte beyond the last code and write no number beyond
/// `count`.
struct DecodeRun {
  void (*toF32)(const float *codeBook, float scale, const uint8_t *packed,
                int64_t count, float *out);
  void (*toBF16)(const float *codeBook, float scale, const uint8_t *packed,
                 int64_t count, uint16_t *out);

  /// Null where this CPU lacks the instructions.
  static const DecodeRun *find();
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_DECODERUN_H
