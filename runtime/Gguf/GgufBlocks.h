// SPDX-License-Identifier: MIT

// The layouts of GGUF's quantized blocks, packed from and unpacked to codes.
// Numbers are little endian; f16 scales are called d, and offsets m.
//
//   q4_0, q5_0  value = d * (code - 8), d * (code - 16); 32 codes
//   q5_1        value = d * code + m; 32 codes
//   q8_0        value = d * code; 32 signed codes
//   q4_K, q5_K  value = d * scale * code - dmin * least; 256 codes in 8 parts.
//               Each part has a scale and a least value of 6 bits.
//   q6_K        value = d * scale * (code - 32); 256 codes in 16 parts. Each
//               part has a signed scale of 8 bits.
//
// Codes of four or more bits keep their low four bits in nibbles: code i of a
// run of 2n codes shares a byte with code i + n. Remaining bits are apart.

#ifndef QLORA_RUNTIME_GGUF_GGUFBLOCKS_H
#define QLORA_RUNTIME_GGUF_GGUFBLOCKS_H

#include <array>
#include <cstdint>
#include <cstring>

namespace qlora::gguf {

inline constexpr int kSuper = 256; ///< values of a block of the K types

/// Blocks as in files. Arrays of bytes need no alignment.
struct BlockQ4_0 {
  uint8_t d[2], codes[16];
};
struct BlockQ5_0 {
  uint8_t d[2], high[4], codes[16];
};
struct BlockQ5_1 {
  uint8_t d[2], m[2], high[4], codes[16];
};
struct BlockQ8_0 {
  uint8_t d[2];
  int8_t codes[32];
};
struct BlockQ4_K {
  uint8_t d[2], dmin[2], scales[12], codes[128];
};
struct BlockQ5_K {
  uint8_t d[2], dmin[2], scales[12], high[32], codes[128];
};
struct BlockQ6_K {
  uint8_t codes[128], high[64];
  int8_t scales[16];
  uint8_t d[2];
};

/// Writes the f16 value nearest to `value`, and returns it.
inline float storeHalf(float value, uint8_t (&out)[2]) {
  const auto half = static_cast<_Float16>(value);
  std::memcpy(out, &half, sizeof(half));
  return static_cast<float>(half);
}
inline float loadHalf(const uint8_t (&from)[2]) {
  _Float16 half;
  std::memcpy(&half, from, sizeof(half));
  return static_cast<float>(half);
}

/// Packs the low nibbles of 2 * `pairs` codes.
inline void packNibbles(const uint8_t *codes, int pairs, uint8_t *out) {
  for (int i = 0; i < pairs; ++i)
    out[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + pairs] << 4));
}
inline void unpackNibbles(const uint8_t *from, int pairs, uint8_t *codes) {
  for (int i = 0; i < pairs; ++i) {
    codes[i] = from[i] & 15;
    codes[i + pairs] = from[i] >> 4;
  }
}

/// Bit i of four bytes is bit 4 of code i.
inline void packFifthBits(const uint8_t *codes, uint8_t (&out)[4]) {
  std::memset(out, 0, sizeof(out));
  for (int i = 0; i < 32; ++i)
    out[i / 8] |= static_cast<uint8_t>((codes[i] >> 4) << (i % 8));
}
inline void unpackFifthBits(const uint8_t (&from)[4], uint8_t *codes) {
  for (int i = 0; i < 32; ++i)
    codes[i] |= static_cast<uint8_t>((from[i / 8] >> (i % 8) & 1) << 4);
}

/// The scales and least values of the 8 parts of q4_K and q5_K.
struct PartScales {
  std::array<uint8_t, 8> scale{}, least{};
};

/// Bytes 0-3 and 4-7 have 6 bits of the first four scales and least values.
/// Bytes 8-11 have the low 4 bits of the other four, whose upper 2 bits are in
/// the upper bits of bytes 0-7.
inline void packScales(const PartScales &parts, uint8_t (&out)[12]) {
  for (int i = 0; i < 4; ++i) {
    const uint8_t scale = parts.scale[i + 4], least = parts.least[i + 4];
    out[i] = static_cast<uint8_t>(parts.scale[i] | (scale >> 4) << 6);
    out[i + 4] = static_cast<uint8_t>(parts.least[i] | (least >> 4) << 6);
    out[i + 8] = static_cast<uint8_t>((scale & 15) | (least & 15) << 4);
  }
}
inline PartScales unpackScales(const uint8_t (&from)[12]) {
  PartScales parts;
  for (int i = 0; i < 4; ++i) {
    parts.scale[i] = from[i] & 63;
    parts.least[i] = from[i + 4] & 63;
    parts.scale[i + 4] =
        static_cast<uint8_t>((from[i + 8] & 15) | (from[i] >> 6) << 4);
    parts.least[i + 4] =
        static_cast<uint8_t>((from[i + 8] >> 4) | (from[i + 4] >> 6) << 4);
  }
  return parts;
}

/// Packs 256 codes of q4_K: in runs of 64, two parts each.
inline void packRuns(const uint8_t *codes, uint8_t (&out)[128]) {
  for (int run = 0; run < 4; ++run)
    packNibbles(codes + 64 * run, 32, out + 32 * run);
}
inline void unpackRuns(const uint8_t (&from)[128], uint8_t *codes) {
  for (int run = 0; run < 4; ++run)
    unpackNibbles(from + 32 * run, 32, codes + 64 * run);
}

/// q5_K: bit p of byte i is bit 4 of code i of part p.
inline void packPartBits(const uint8_t *codes, uint8_t (&out)[32]) {
  std::memset(out, 0, sizeof(out));
  for (int i = 0; i < kSuper; ++i)
    out[i % 32] |= static_cast<uint8_t>((codes[i] >> 4) << (i / 32));
}
inline void unpackPartBits(const uint8_t (&from)[32], uint8_t *codes) {
  for (int i = 0; i < kSuper; ++i)
    codes[i] |= static_cast<uint8_t>((from[i % 32] >> (i / 32) & 1) << 4);
}

/// q6_K: two halves of 128 codes. A half has 64 bytes of nibbles, and 32 bytes
/// of upper bits: byte i has those of codes i, i + 32, i + 64 and i + 96.
inline void packSixBits(const uint8_t *codes, BlockQ6_K &out) {
  std::memset(out.high, 0, sizeof(out.high));
  for (int half = 0; half < 2; ++half) {
    packNibbles(codes + 128 * half, 64, out.codes + 64 * half);
    for (int i = 0; i < 128; ++i)
      out.high[32 * half + i % 32] |= static_cast<uint8_t>(
          (codes[128 * half + i] >> 4) << (2 * (i / 32)));
  }
}
inline void unpackSixBits(const BlockQ6_K &from, uint8_t *codes) {
  for (int half = 0; half < 2; ++half) {
    unpackNibbles(from.codes + 64 * half, 64, codes + 128 * half);
    for (int i = 0; i < 128; ++i)
      codes[128 * half + i] |= static_cast<uint8_t>(
          (from.high[32 * half + i % 32] >> (2 * (i / 32)) & 3) << 4);
  }
}

} // namespace qlora::gguf

#endif // QLORA_RUNTIME_GGUF_GGUFBLOCKS_H
