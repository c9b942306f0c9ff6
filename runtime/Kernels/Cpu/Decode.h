// SPDX-License-Identifier: MIT

// Decodes ranges of a stored weight; decode and panel_matmul use it.

#ifndef QLORA_RUNTIME_KERNELS_CPU_DECODE_H
#define QLORA_RUNTIME_KERNELS_CPU_DECODE_H

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Kernels/Math/Stored.h"

namespace qlora {

/// The zero point and the scale of a block.
struct ScaledFrom {
  float zero, absmax;

  static ScaledFrom of(const StoredTensor &tensor, int64_t blockIndex) {
    return {tensor.zero(blockIndex), tensor.absmax(blockIndex)};
  }
  float operator()(float value) const { return (value - zero) * absmax; }
};

/// Functions that decode 4-bit codes with AVX-512: one table look-up in a
/// register gives 32 bf16 or 16 f32 values. out[i] := (codeBook[code i] - zero)
/// * scale for `count` codes with one scale. The first code is in the high
/// nibble of packed[0]. The bits are those of StoredTensor::element, rounded to
/// nearest even. The functions read no byte after the last code and write no
/// value after `count`.
struct DecodeRun {
  void (*toF32)(const float *codeBook, ScaledFrom scale, const uint8_t *packed,
                int64_t count, float *out);
  void (*toBF16)(const float *codeBook, ScaledFrom scale, const uint8_t *packed,
                 int64_t count, uint16_t *out);

  /// Returns null if this CPU lacks the instructions.
  static const DecodeRun *find();
};

/// A weight [rows, columns], flattened; quantized or floating-point.
struct StoredWeight {
  qlora_dtype dtype;
  int64_t columns;
  StoredLayout layout; ///< layout of a quantized weight
  /// log2 of the block size, or -1 if the size is no power of two.
  int scaleShift = -1;
  const DecodeRun *decodeRun = nullptr; ///< 4-bit decoder, or null

  bool isQuantized() const { return storedFormat(dtype) != nullptr; }

  /// Describes the operand w of a request with the constants rows, columns,
  /// block and double_quant.
  static StoredWeight of(const KernelRequest &request);
  /// Describes a quantized weight with rows of `columns` elements.
  static StoredWeight of(const StoredLayout &layout, int64_t columns);

  /// Decodes elements [first, first + count) of `weight` to `outType` (f32,
  /// bf16 or f16), on all threads. A range may begin within a block or byte.
  void decode(const void *weight, int64_t first, int64_t count,
              qlora_dtype outType, void *out) const;

  struct Part {
    int64_t firstRow, rowCount, firstColumn, columnCount;
  };
  /// Decodes a range of the matrix to a dense `out`, on the calling thread.
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
