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

namespace qlora {

inline constexpr int64_t kNF4NestedBlock = 256;

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

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_MATH_NF4_H
