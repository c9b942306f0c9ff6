// SPDX-License-Identifier: MIT

// Ranges of a stored weight as numbers: what decode and panel_matmul share.

#ifndef QLORA_RUNTIME_KERNELS_CPU_DECODE_H
#define QLORA_RUNTIME_KERNELS_CPU_DECODE_H

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Kernels/Math/Stored.h"

namespace qlora {

/// What the numbers of a block have in common.
struct ScaledFrom {
  float zero, absmax;

  static ScaledFrom of(const StoredTensor &tensor, int64_t blockIndex) {
    return {tensor.zero(blockIndex), tensor.absmax(blockIndex)};
  }
  float operator()(float value) const { return (value - zero) * absmax; }
};

/// Numbers of 4 bits that share one scale, by AVX-512: 32 bf16 or 16 f32 numbers are
/// one table look-up in a register. The bits are those of StoredTensor::element,
/// rounded to nearest even. Functions for `count` codes that share a scale, the first in the high
/// nibble of packed[0]: out[i] := (codeBook[code i] - zero) * scale, of 16
/// values in the code book. They read no byte beyond the last code and write no number beyond
/// `count`.
struct DecodeRun {
  void (*toF32)(const float *codeBook, ScaledFrom scale, const uint8_t *packed,
                int64_t count, float *out);
  void (*toBF16)(const float *codeBook, ScaledFrom scale, const uint8_t *packed,
                 int64_t count, uint16_t *out);

  /// Null where this CPU lacks the instructions.
  static const DecodeRun *find();
};

/// A weight [rows, columns], flattened; quantised or a floating-point type.
struct StoredWeight {
  qlora_dtype dtype;
  int64_t columns;
  StoredLayout layout; ///< of a quantised weight
  /// log2 of the block, or -1 where the block is no power of two.
  int scaleShift = -1;
  const DecodeRun *decodeRun = nullptr; ///< of 4 bits, where there is one

  bool isQuantized() const { return storedFormat(dtype) != nullptr; }

  /// From the constants rows, columns, block and double_quant and the
  /// operand w.
  static StoredWeight of(const KernelRequest &request);
  /// A quantised one.
  static StoredWeight of(const StoredLayout &layout, int64_t columns);

  /// Elements [first, first + count) of `weight` as `outType` (f32, bf16 or
  /// f16), on all threads. Any range: it may begin and end within a block or
  /// a byte.
  void decode(const void *weight, int64_t first, int64_t count,
              qlora_dtype outType, void *out) const;

  /// Some rows' elements in some columns.
  struct Part {
    int64_t firstRow, rowCount, firstColumn, columnCount;
  };
  /// The same for a part of the matrix, which is dense in `out`, on the
  /// calling thread.
  void decodePart(const void *weight, const Part &part, qlora_dtype outType,
                  void *out) const;

private:
  void decodeSerial(const void *weight, int64_t first, int64_t count,
                    qlora_dtype outType, void *out) const;
  void decodeQuantized(const void *weight, int64_t first, int64_t count,
                 qlora_dtype outType, void *out) const;
  void prefetch(const void *weight, int64_t first, int64_t count) const;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_DECODE_H
