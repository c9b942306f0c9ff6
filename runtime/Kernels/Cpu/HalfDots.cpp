// SPDX-License-Identifier: MIT

// An instruction of AVX512_BF16 adds two products of bf16 to each f32 lane. A
// permutation looks up 32 codes in a table of 16 values, which is there twice,
// because it takes five bits of an index: those of the byte's other nibble do
// not matter.

#include "runtime/Kernels/Cpu/RunDots.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace qlora {

#ifdef __x86_64__

#define QLORA_AVX512BF16                                                       \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,"                \
                        "prefer-vector-width=512")))
#define QLORA_UNROLLED _Pragma("GCC unroll 4")

namespace {

/// Elements of a vector.
constexpr int64_t kVector = HalfDots::kRun / 2;

/// The lanes of some rows, in two vectors each.
template <int Rows> struct HalfSums {
  __m512 low[Rows], high[Rows];

  QLORA_AVX512BF16 void load(const float *lanes) {
    QLORA_UNROLLED for (int r = 0; r < Rows; ++r) {
      low[r] = _mm512_loadu_ps(lanes + 32 * r);
      high[r] = _mm512_loadu_ps(lanes + 32 * r + 16);
    }
  }
  QLORA_AVX512BF16 void store(float *lanes) const {
    QLORA_UNROLLED for (int r = 0; r < Rows; ++r) {
      _mm512_storeu_ps(lanes + 32 * r, low[r]);
      _mm512_storeu_ps(lanes + 32 * r + 16, high[r]);
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

static void addQuantizedRun(const StoredRun &run, const HalfDots::Rows &rows) {
  for (int64_t first = run.first; first < run.first + run.count;) {
    const BlockScales blocks(run, first);
    const uint16_t *const x = rows.x + (first - run.first);
    forRowGroups(rows.count, [&](int64_t row, auto number) {
      addBlocks<decltype(number)::value>(
          blocks, x + row * rows.stride, rows.stride,
          rows.sums + row * RunDots::kLanes);
    });
    first = blocks.end;
  }
}

static void addDenseRun(const uint16_t *weights, int64_t count,
                     const HalfDots::Rows &rows) {
  forRowGroups(rows.count, [&](int64_t row, auto number) {
    addNumbers<decltype(number)::value>(
        weights, count, rows.x + row * rows.stride, rows.stride,
        rows.sums + row * RunDots::kLanes);
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
