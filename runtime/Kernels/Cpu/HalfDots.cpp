// SPDX-License-Identifier: MIT

// An instruction of AVX512_BF16 adds two products of bf16 to each f32 lane. A
// permutation looks up 32 codes in a table of 16 values, which is there twice,
// because it takes five bits of an index: those of the byte's other nibble do
// not matter.

#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/RunDots.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace qlora {

#ifdef __x86_64__

#define QLORA_AVX512BF16                                                       \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,"                \
                        "prefer-vector-width=512")))

namespace {

/// bf16 elements and f32 lanes of a vector.
constexpr int64_t kVector = HalfDots::kRun / 2;
constexpr int64_t kHalf = RunDots::kLanes / 2;

/// The lanes of some rows, in two vectors each.
template <int Rows> struct HalfSums {
  __m512 low[Rows], high[Rows];

  QLORA_AVX512BF16 void load(const float *lanes) {
    QLORA_UNROLLED for (int r = 0; r < Rows; ++r) {
      low[r] = _mm512_loadu_ps(lanes + 2 * r * kHalf);
      high[r] = _mm512_loadu_ps(lanes + (2 * r + 1) * kHalf);
    }
  }
  QLORA_AVX512BF16 void store(float *lanes) const {
    QLORA_UNROLLED for (int r = 0; r < Rows; ++r) {
      _mm512_storeu_ps(lanes + 2 * r * kHalf, low[r]);
      _mm512_storeu_ps(lanes + (2 * r + 1) * kHalf, high[r]);
    }
  }
  /// Adds the products of 64 values.
  QLORA_AVX512BF16 void add(const uint16_t *x, int64_t stride,
                            __m512i lowValues, __m512i highValues) {
    QLORA_UNROLLED for (int r = 0; r < Rows; ++r) {
      const uint16_t *const row = x + r * stride;
      low[r] = _mm512_dpbf16_ps(low[r], (__m512bh)_mm512_loadu_si512(row),
                                (__m512bh)lowValues);
      high[r] = _mm512_dpbf16_ps(high[r],
                                 (__m512bh)_mm512_loadu_si512(row + kVector),
                                 (__m512bh)highValues);
    }
  }
};

} // namespace

/// Returns the table of a block's values, twice.
QLORA_AVX512BF16 static inline __m512i tableOf(__m512 book, float zero,
                                               float absmax) {
  const __m512 values = _mm512_mul_ps(
      _mm512_sub_ps(book, _mm512_set1_ps(zero)), _mm512_set1_ps(absmax));
  return _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(values));
}

/// Adds the products of blocks with `Rows` rows. A byte's high nibble is the
/// code of an even element.
template <int Rows>
QLORA_AVX512BF16 static void addBlocks(const BlockScales &blocks,
                                       const uint16_t *x, int64_t stride,
                                       float *lanes) {
  const StoredTensor tensor = blocks.tensor;
  const __m512 book = _mm512_loadu_ps(tensor.codeBook);
  HalfSums<Rows> sums;
  sums.load(lanes);
  int64_t at = blocks.first, blockEnd = (blocks.block + 1) * tensor.block;
  for (int64_t i = 0; at < blocks.end; ++i, blockEnd += tensor.block) {
    const __m512i table =
        tableOf(book, tensor.zero(blocks.block + i), blocks.absmax[i]);
    for (const int64_t end = std::min(blockEnd, blocks.end); at < end;
         at += 2 * kVector, x += 2 * kVector) {
      const uint8_t *const packed = tensor.packed + at / 2;
      prefetchAhead(packed);
      const __m512i bytes = _mm512_cvtepu8_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i *>(packed)));
      sums.add(x, stride,
               _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 4), table),
               _mm512_permutexvar_epi16(bytes, table));
    }
  }
  sums.store(lanes);
}

template <int Rows>
QLORA_AVX512BF16 static void addNumbers(const uint16_t *weights, int64_t count,
                                        const uint16_t *x, int64_t stride,
                                        float *lanes) {
  HalfSums<Rows> sums;
  sums.load(lanes);
  for (int64_t i = 0; i < count; i += 2 * kVector) {
    prefetchAhead(weights + i);
    prefetchAhead(weights + i + kVector);
    sums.add(x + i, stride, _mm512_loadu_si512(weights + i),
             _mm512_loadu_si512(weights + i + kVector));
  }
  sums.store(lanes);
}

static void addQuantizedRun(const StoredRun &run,
                            const DotRows<uint16_t> &rows) {
  forBlocks(run, rows, [&](const BlockScales &blocks, auto number,
                           const uint16_t *x, float *lanes) {
    addBlocks<number>(blocks, x, rows.stride, lanes);
  });
}

static void addDenseRun(const uint16_t *weights, int64_t count,
                        const DotRows<uint16_t> &rows) {
  forRowGroups(rows, [&](auto number, const uint16_t *x, float *lanes) {
    addNumbers<number>(weights, count, x, rows.stride, lanes);
  });
}

const HalfDots *HalfDots::find() {
  static constexpr HalfDots kFunctions = {addQuantizedRun, addDenseRun};
  static const bool isThere = __builtin_cpu_supports("avx512bf16") &&
                              __builtin_cpu_supports("avx512bw") &&
                              __builtin_cpu_supports("avx512vl");
  return isThere ? &kFunctions : nullptr;
}

#else

const HalfDots *HalfDots::find() { return nullptr; }

#endif

} // namespace qlora
