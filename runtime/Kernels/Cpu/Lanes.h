// SPDX-License-Identifier: MIT

// Sixteen numbers that are computed with together: the vector extension of
// GCC and clang, which every instruction set can do and AVX-512 does at once.
// For loops that a compiler does not vectorise well by itself; their functions
// are QLORA_VECTOR, so these inline into each of its variants.

#ifndef QLORA_RUNTIME_KERNELS_CPU_LANES_H
#define QLORA_RUNTIME_KERNELS_CPU_LANES_H

#include <cstdint>
#include <cstring>

#define QLORA_LANES_INLINE static inline __attribute__((always_inline))

namespace qlora {

inline constexpr int64_t kLanes = 16;

using FloatLanes = float __attribute__((vector_size(4 * kLanes)));
using BitLanes = uint32_t __attribute__((vector_size(4 * kLanes)));
using HalfLanes = uint16_t __attribute__((vector_size(2 * kLanes)));

QLORA_LANES_INLINE void loadLanes(const float *from, FloatLanes &to) {
  std::memcpy(&to, from, sizeof(to));
}
QLORA_LANES_INLINE void storeLanes(const FloatLanes &from, float *to) {
  std::memcpy(to, &from, sizeof(from));
}

/// Lane i of `to` := lane (i + by) % 16 of `from`.
#define QLORA_ROTATED(from, by)                                                \
  __builtin_shufflevector(from, from, (0 + by) % 16, (1 + by) % 16,            \
                          (2 + by) % 16, (3 + by) % 16, (4 + by) % 16,         \
                          (5 + by) % 16, (6 + by) % 16, (7 + by) % 16,         \
                          (8 + by) % 16, (9 + by) % 16, (10 + by) % 16,        \
                          (11 + by) % 16, (12 + by) % 16, (13 + by) % 16,      \
                          (14 + by) % 16, (15 + by) % 16)

/// Pairwise, in a fixed order.
QLORA_LANES_INLINE float sumOfLanes(FloatLanes lanes) {
  lanes += QLORA_ROTATED(lanes, 8);
  lanes += QLORA_ROTATED(lanes, 4);
  lanes += QLORA_ROTATED(lanes, 2);
  return lanes[0] + lanes[1];
}

/// The greater of each two; `b` where one is not a number.
QLORA_LANES_INLINE void raiseLanes(const FloatLanes &a, FloatLanes &b) {
  b = a > b ? a : b;
}
QLORA_LANES_INLINE float maximumOfLanes(FloatLanes lanes) {
  raiseLanes(QLORA_ROTATED(lanes, 8), lanes);
  raiseLanes(QLORA_ROTATED(lanes, 4), lanes);
  raiseLanes(QLORA_ROTATED(lanes, 2), lanes);
  raiseLanes(QLORA_ROTATED(lanes, 1), lanes);
  return lanes[0];
}

/// Rounds to bf16 as qlora_f32_to_bf16 does.
QLORA_LANES_INLINE void storeLanesBF16(const FloatLanes &from, uint16_t *to) {
  BitLanes bits;
  std::memcpy(&bits, &from, sizeof(bits));
  const BitLanes rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const BitLanes quiet = (bits >> 16) | 0x40u;
  const HalfLanes halves = __builtin_convertvector(
      (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded, HalfLanes);
  std::memcpy(to, &halves, sizeof(halves));
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_LANES_H
