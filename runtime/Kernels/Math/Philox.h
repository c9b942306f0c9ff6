// SPDX-License-Identifier: MIT

// Philox4x32-10: random numbers as a pure function of a counter and a key
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). There
// is no state: recomputation gives the same value, and threads may draw rows in
// any order. Host and device compile this file. It includes only <stdint.h>,
// and is branch-free so that loops over columns vectorise.

#ifndef QLORA_RUNTIME_KERNELS_MATH_PHILOX_H
#define QLORA_RUNTIME_KERNELS_MATH_PHILOX_H

#include <stdint.h>

#ifndef QLORA_INLINE
#ifdef __CUDACC__
#define QLORA_INLINE static inline __host__ __device__
#else
#define QLORA_INLINE static inline __attribute__((always_inline))
#endif
#endif

struct qlora_philox_words {
  uint32_t word0, word1, word2, word3;
};

/// Returns the 64-bit product. Uses an instruction on CUDA, because nvcc adds a
/// zero to the product of two widened operands. These additions would be a
/// quarter of all instructions of a draw.
QLORA_INLINE uint64_t qlora_multiply_wide(uint32_t a, uint32_t b) {
#if defined(__NVCC__) && defined(__CUDA_ARCH__)
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return uint64_t(a) * b;
#endif
}

/// Runs ten rounds over `counter` with a key of two words.
QLORA_INLINE qlora_philox_words qlora_philox(qlora_philox_words counter,
                                             uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = qlora_multiply_wide(counter.word0, 0xD2511F53u);
    const uint64_t product1 = qlora_multiply_wide(counter.word2, 0xCD9E8D57u);
    counter = {
        uint32_t(product1 >> 32) ^ counter.word1 ^ key0, uint32_t(product1),
        uint32_t(product0 >> 32) ^ counter.word3 ^ key1, uint32_t(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// Maps a word to [0, 1), in multiples of 2^-24.
QLORA_INLINE float qlora_unit(uint32_t word) {
  return float(int32_t(word >> 8)) * 0x1p-24f;
}

/// Converts this rank's row `row` to a row of the unsharded micro-batch.
/// `tokens` is the number of tokens of a sequence per context-parallel rank;
/// this rank has cp shard `part` of `parts`.
QLORA_INLINE uint32_t qlora_whole_row(uint32_t row, uint32_t tokens,
                                      uint32_t parts, uint32_t part) {
  return parts < 2 ? row
                   : row + row / tokens * tokens * (parts - 1) + part * tokens;
}

/// Returns a random number in [0, 1) for one element of a matrix. `micro_batch`
/// counts micro-batches over all steps. `op` identifies one random op.
///
///   key     = seed
///   counter = {column / 4, row, op, micro_batch}, each mod 2^32
///   result  = word[column % 4] >> 8, times 2^-24
///
/// Four adjacent columns share a counter, so one call can draw all four.
QLORA_INLINE float qlora_uniform(uint64_t seed, uint64_t micro_batch,
                                 uint64_t op, int64_t row, int64_t column) {
  const qlora_philox_words words =
      qlora_philox({uint32_t(uint64_t(column) / 4), uint32_t(row), uint32_t(op),
                    uint32_t(micro_batch)},
                   uint32_t(seed), uint32_t(seed >> 32));
  const uint32_t lane = uint32_t(column) % 4;
  const uint32_t low = lane == 0 ? words.word0 : words.word1;
  const uint32_t high = lane == 2 ? words.word2 : words.word3;
  return qlora_unit(lane < 2 ? low : high);
}

#endif // QLORA_RUNTIME_KERNELS_MATH_PHILOX_H
