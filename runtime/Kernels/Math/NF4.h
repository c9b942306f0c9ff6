// SPDX-License-Identifier: MIT

// NF4 as bitsandbytes stores it (Dettmers et al., "QLoRA", 2023): the layout
// of one quantised tensor in memory, and the arithmetic of one element. Used
// by quantise-on-load, by every decode kernel, and by the compiler (sizes).
//
// A tensor of n elements, flattened row-major, is cut into blocks of `block`
// elements. Element 2i is in the high nibble of byte i, element 2i+1 in the
// low nibble. A block's scale is an f32 absmax, or, with double quantisation,
// a code of one byte: absmax = map[code] * nestedAbsmax[i / 256] + offset,
// product and sum rounded separately (no FMA).
//
// In memory the parts follow each other, each at a multiple of 64 bytes:
//
//   packed u8 [ceil(n/2)] | scales f32 or u8 [blocks]
//     | nestedAbsmax f32 [ceil(blocks/256)] | nestedMap f32 [256]
//     | tail: codeBook f32 [16], offset f32 [1]
//
// (nestedAbsmax and nestedMap only with double quantisation).

#ifndef QLORA_RUNTIME_KERNELS_MATH_NF4_H
#define QLORA_RUNTIME_KERNELS_MATH_NF4_H

#include <cstdint>

#ifdef __CUDACC__
#define QLORA_HOST_DEVICE __host__ __device__
#else
#define QLORA_HOST_DEVICE
#endif

namespace qlora {

inline constexpr int64_t kNF4NestedBlock = 256;

/// The code book: 16 increasing values.
QLORA_HOST_DEVICE constexpr float nf4Value(int code) {
  constexpr float kValues[16] = {
      -1.0f,
      -0.6961928009986877f,
      -0.5250730514526367f,
      -0.39491748809814453f,
      -0.28444138169288635f,
      -0.18477343022823334f,
      -0.09105003625154495f,
      0.0f,
      0.07958029955625534f,
      0.16093020141124725f,
      0.24611230194568634f,
      0.33791524171829224f,
      0.44070982933044434f,
      0.5626170039176941f,
      0.7229568362236023f,
      1.0f,
  };
  return kValues[code];
}

struct NF4Layout {
  int64_t elements = 0;
  int64_t block = 64;
  bool doubleQuant = false;

  int64_t blocks = 0;
  int64_t nestedBlocks = 0;
  // Byte offsets from the start of the tensor.
  int64_t packed = 0;
  int64_t scales = 0;
  int64_t nestedAbsmax = 0;
  int64_t nestedMap = 0;
  int64_t codeBook = 0;
  int64_t offset = 0;
  int64_t bytes = 0; ///< of the whole

  static constexpr NF4Layout of(int64_t elements, int64_t block,
                                bool doubleQuant) {
    auto align = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
    NF4Layout l;
    l.elements = elements;
    l.block = block;
    l.doubleQuant = doubleQuant;
    l.blocks = (elements + block - 1) / block;
    l.nestedBlocks =
        doubleQuant ? (l.blocks + kNF4NestedBlock - 1) / kNF4NestedBlock : 0;
    l.scales = align((elements + 1) / 2);
    l.nestedAbsmax = l.scales + align(doubleQuant ? l.blocks : 4 * l.blocks);
    l.nestedMap = l.nestedAbsmax + align(4 * l.nestedBlocks);
    l.codeBook = l.nestedMap + (doubleQuant ? 4 * 256 : 0);
    l.offset = l.codeBook + 4 * 16;
    l.bytes = align(l.offset + 4);
    return l;
  }
};

// Which scale an element has ---------------------------------------------------
//
// By the format it is scale j / block for element j of the flattened matrix,
// and where the columns are a multiple of the block nothing else is possible.
// Otherwise bitsandbytes 0.50 on a CPU with AVX-512 decodes row by row, each
// row from scale row * (columns / block) on, if the columns are a multiple of
// 16 and the block is below 2048 (measured for every even number of columns
// to 198 and blocks 32 to 4096). The weights that transformers and PEFT then
// compute with on a CPU, and that the golden cases hold, are those; they are
// not the ones that were quantised. We give the same numbers.

/// Whether rows start at a scale of their own.
QLORA_HOST_DEVICE constexpr bool nf4HasRowScales(int64_t columns, int64_t block) {
  return columns % block != 0 && columns % 16 == 0 && block < 2048;
}

/// Index of the scale of flattened element `element`.
QLORA_HOST_DEVICE constexpr int64_t nf4ScaleIndex(int64_t columns, int64_t block,
                                int64_t element) {
  if (!nf4HasRowScales(columns, block))
    return element / block;
  return element / columns * (columns / block) + element % columns / block;
}

/// The first element after `element` that may have another scale.
QLORA_HOST_DEVICE constexpr int64_t nf4ScaleRunEnd(int64_t columns, int64_t block,
                                 int64_t element) {
  if (!nf4HasRowScales(columns, block))
    return (element / block + 1) * block;
  const int64_t rowStart = element / columns * columns;
  const int64_t blockEnd = ((element - rowStart) / block + 1) * block;
  return rowStart + (blockEnd < columns ? blockEnd : columns);
}

// Numbers ----------------------------------------------------------------------

/// The parts of one quantised tensor, and what its numbers are. A kernel that
/// decodes faster must give the same bits.
struct NF4Tensor {
  int64_t block;
  bool doubleQuant;
  const uint8_t *packed;
  const void *scales;
  const float *nestedAbsmax;
  const float *nestedMap;
  const float *codeBook;
  const float *nestedOffset;
  int64_t columns; ///< of the matrix: decides which scale

  /// `bytes` is aligned to 4.
  static NF4Tensor of(const NF4Layout &layout, int64_t columns,
                      const void *bytes) {
    const auto *base = static_cast<const uint8_t *>(bytes);
    const auto floats = [&](int64_t offset) {
      return reinterpret_cast<const float *>(base + offset);
    };
    return {layout.block,
            layout.doubleQuant,
            base + layout.packed,
            base + layout.scales,
            floats(layout.nestedAbsmax),
            floats(layout.nestedMap),
            floats(layout.codeBook),
            floats(layout.offset),
            columns};
  }

  /// Compile callers with -ffp-contract=off: product and sum are rounded one
  /// by one.
  float absmax(int64_t blockIndex) const {
    if (!doubleQuant)
      return static_cast<const float *>(scales)[blockIndex];
    const uint8_t code = static_cast<const uint8_t *>(scales)[blockIndex];
    const float product =
        nestedMap[code] * nestedAbsmax[blockIndex / kNF4NestedBlock];
    return product + *nestedOffset;
  }

  float element(int64_t index) const {
    const uint8_t byte = packed[index / 2];
    const int nibble = index % 2 == 0 ? byte >> 4 : byte & 15;
    return codeBook[nibble] * absmax(nf4ScaleIndex(columns, block, index));
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_MATH_NF4_H
