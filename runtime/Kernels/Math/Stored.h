// SPDX-License-Identifier: MIT

// Weights stored in few bits: the formats, the memory layout of a tensor, and
// the arithmetic of one element. Quantize-on-load, every decode kernel and the
// compiler (for sizes) use this file.
//
// A format is a dtype and a row of kStoredFormats, which all other code reads.
// Files differ in order, scales and names. Their reader
// (runtime/Weights/StoredTensors.h) converts them to the one layout in memory.
//
// A tensor of n elements, flattened row-major, consists of blocks of `block`
// elements. For some formats a block is a row; for others, blocks may straddle
// rows. Element i belongs to block i / block. Its value is the code book's
// value of its code times the block's scale, rounded once. Formats with zero
// points first subtract the block's zero point, which is exact. With 4 bits,
// the high nibble of byte i is element 2i, the low nibble element 2i+1.
//
// The scale of a block is a stored f32 times the tensor's correction. With
// `doubleQuant` (bitsandbytes' double quantization), a one-byte code is stored,
// and block i has the scale map[code] * nestedAbsmax[i / 256] + correction.
// Product and sum are rounded separately (no FMA). MXFP4's powers of two are
// such a map of 256 entries, with nestedAbsmax 1 and correction 0.
//
// In memory, each component starts at a multiple of 64 bytes, in this order:
//
//   packed u8 [ceil(n*bits/8)] | scales f32 or u8 [blocks]
//     | zeros u8 [blocks] | nestedAbsmax f32 [ceil(blocks/256)]
//     | nestedMap f32 [256]
//     | tail: codeBook f32 [2^bits], correction f32 [1]
//
// Only formats with zero points have zeros. Only double quantization has
// nestedAbsmax and nestedMap.

#ifndef QLORA_RUNTIME_KERNELS_MATH_STORED_H
#define QLORA_RUNTIME_KERNELS_MATH_STORED_H

#include <cstdint>
#include <string_view>

#include "runtime/ABI/kernel.h"
#include "runtime/Kernels/Math/CodeBooks.h"

namespace qlora {

/// Number of coded scales that share a value of nestedAbsmax.
inline constexpr int64_t kNestedRun = 256;

// Formats ---------------------------------------------------------------------

/// When scales of a format are codes: never, only with doubleQuant, or always.
enum class CodedScales { kNever, kByChoice, kAlways };

struct StoredFormat {
  qlora_dtype dtype;
  const char *name;  ///< name of the dtype and the type in programs
  const char *title; ///< name in messages
  int bits;          ///< per code: 4 or 8
  float (*value)(int code);
  /// Allowed block sizes: powers of two in [leastBlock, mostBlock]; if
  /// takesRows, also the length of a row.
  int64_t leastBlock, mostBlock;
  bool takesRows;
  CodedScales codedScales;
  float scaleFactor; ///< correction of scales that are not codes
  bool hasZeros;     ///< a zero point for each block

  constexpr bool takesPower(int64_t block) const {
    return block > 0 && (block & (block - 1)) == 0 && block >= leastBlock &&
           block <= mostBlock;
  }
  constexpr bool takesBlock(int64_t block) const {
    return takesPower(block) || (takesRows && block > 0);
  }
  /// Whether codes are two's complement integers and each row has one scale.
  /// Then int8_matmul can multiply the codes directly.
  constexpr bool isInteger() const { return value == int8Value; }
  constexpr bool takesDoubleQuant(bool doubleQuant) const {
    return codedScales == CodedScales::kByChoice ||
           doubleQuant == (codedScales == CodedScales::kAlways);
  }
};

/// In LLM.int8 (bitsandbytes), code 127 is the largest magnitude of a row.
/// INT4 and INT8 hold the codes of GPTQ and AWQ.
inline constexpr StoredFormat kStoredFormats[] = {
    {QLORA_DTYPE_NF4, "nf4", "NF4", 4, nf4Value, 64, 4096, false,
     CodedScales::kByChoice, 1.0f, false},
    {QLORA_DTYPE_FP4, "fp4", "FP4", 4, fp4Value, 64, 4096, false,
     CodedScales::kByChoice, 1.0f, false},
    {QLORA_DTYPE_MXFP4, "mxfp4", "MXFP4", 4, mxfp4Value, 32, 32, false,
     CodedScales::kAlways, 1.0f, false},
    {QLORA_DTYPE_LLM_INT8, "llm_int8", "LLM.int8", 8, int8Value, 1, 0, true,
     CodedScales::kNever, 1.0f / 127.0f, false},
    {QLORA_DTYPE_FP8, "fp8", "FP8", 8, fp8Value, 16, 128, true,
     CodedScales::kNever, 1.0f, false},
    {QLORA_DTYPE_INT4, "int4", "INT4", 4, integerValue, 16, 1024, true,
     CodedScales::kNever, 1.0f, true},
    {QLORA_DTYPE_INT8, "int8", "INT8", 8, integerValue, 16, 1024, true,
     CodedScales::kNever, 1.0f, true},
};

/// Returns the format of a dtype; null if the dtype is floating-point.
constexpr const StoredFormat *storedFormat(uint32_t dtype) {
  for (const StoredFormat &format : kStoredFormats)
    if (format.dtype == dtype)
      return &format;
  return nullptr;
}

constexpr const StoredFormat *storedFormat(std::string_view name) {
  for (const StoredFormat &format : kStoredFormats)
    if (format.name == name)
      return &format;
  return nullptr;
}

// Layout ----------------------------------------------------------------------

struct StoredLayout {
  qlora_dtype dtype = QLORA_DTYPE_NF4;
  int64_t elements = 0;
  int64_t block = 64;
  bool doubleQuant = false;

  int bits = 4;
  int64_t blocks = 0;
  int64_t nestedBlocks = 0;
  int64_t packedBytes = 0;
  // Byte offsets of the components from the start of the tensor.
  int64_t packed = 0;
  int64_t scales = 0;
  int64_t zeros = 0;
  int64_t nestedAbsmax = 0;
  int64_t nestedMap = 0;
  int64_t codeBook = 0;
  int64_t correction = 0;
  int64_t bytes = 0; ///< size of the tensor

  /// Returns the layout of a tensor; `dtype` is in kStoredFormats.
  static constexpr StoredLayout of(qlora_dtype dtype, int64_t elements,
                                   int64_t block, bool doubleQuant) {
    auto align = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
    StoredLayout l;
    l.dtype = dtype;
    l.elements = elements;
    l.block = block;
    l.doubleQuant = doubleQuant;
    l.bits = storedFormat(dtype)->bits;
    l.blocks = (elements + block - 1) / block;
    l.nestedBlocks = doubleQuant ? (l.blocks + kNestedRun - 1) / kNestedRun : 0;
    l.packedBytes = l.bytesOf(elements);
    l.scales = align(l.packedBytes);
    l.zeros = l.scales + align(doubleQuant ? l.blocks : 4 * l.blocks);
    l.nestedAbsmax = l.zeros + (l.format().hasZeros ? align(l.blocks) : 0);
    l.nestedMap = l.nestedAbsmax + align(4 * l.nestedBlocks);
    l.codeBook = l.nestedMap + (doubleQuant ? 4 * 256 : 0);
    l.correction = l.codeBook + 4 * (int64_t(1) << l.bits);
    l.bytes = align(l.correction + 4);
    return l;
  }

  /// Returns the bytes that the codes of `count` elements take.
  constexpr int64_t bytesOf(int64_t count) const {
    return bits == 8 ? count : (count + 1) / 2;
  }
  constexpr const StoredFormat &format() const { return *storedFormat(dtype); }
};

// Values ----------------------------------------------------------------------

/// The components of a quantized tensor, and the reference decoder of an
/// element. Faster decoders must give the same bits.
struct StoredTensor {
  int bits;
  int64_t block;
  bool doubleQuant;
  const uint8_t *packed;
  const void *scales;
  const uint8_t *zeros; ///< null without zero points
  const float *nestedAbsmax;
  const float *nestedMap;
  const float *codeBook;
  const float *correction;

  /// Returns the tensor stored at `bytes`, which must be aligned to 4 bytes.
  static StoredTensor of(const StoredLayout &layout, const void *bytes) {
    const auto *base = static_cast<const uint8_t *>(bytes);
    const auto floats = [&](int64_t offset) {
      return reinterpret_cast<const float *>(base + offset);
    };
    return {layout.bits,
            layout.block,
            layout.doubleQuant,
            base + layout.packed,
            base + layout.scales,
            layout.format().hasZeros ? base + layout.zeros : nullptr,
            floats(layout.nestedAbsmax),
            floats(layout.nestedMap),
            floats(layout.codeBook),
            floats(layout.correction)};
  }

  /// Returns a block's scale. Product and sum are rounded separately, so
  /// compile callers with -ffp-contract=off.
  float absmax(int64_t blockIndex) const {
    if (!doubleQuant)
      return static_cast<const float *>(scales)[blockIndex] * *correction;
    const uint8_t code = static_cast<const uint8_t *>(scales)[blockIndex];
    const float product =
        nestedMap[code] * nestedAbsmax[blockIndex / kNestedRun];
    return product + *correction;
  }

  /// Returns a block's zero point; 0 for formats without, because x - 0 is x.
  float zero(int64_t blockIndex) const {
    return zeros ? float(zeros[blockIndex]) : 0.0f;
  }

  int code(int64_t index) const {
    if (bits == 8)
      return packed[index];
    const uint8_t byte = packed[index / 2];
    return index % 2 == 0 ? byte >> 4 : byte & 15;
  }

  float element(int64_t index) const {
    const int64_t blockIndex = index / block;
    return (codeBook[code(index)] - zero(blockIndex)) * absmax(blockIndex);
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_MATH_STORED_H
