// SPDX-License-Identifier: MIT

// Decodes 4-bit codes with permutations of AVX-512. A permutation uses only the
// low bits of a lane as index into the table, so higher bits need not be
// cleared: a byte b becomes b >> 4 in one lane and b in the next. For f32 the
// table has 16 values and an index 4 bits. For bf16 the table has the 16 values
// twice, so the fifth bit of an index does not matter.

#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/Parallel.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace qlora {

#ifdef __x86_64__

#define QLORA_AVX512                                                           \
  __attribute__((target("avx512f,avx512bw,avx512vl,prefer-vector-width=512")))

QLORA_AVX512 static __m512 tableOf(const float *codeBook, ScaledFrom scale) {
  return _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(codeBook),
                                     _mm512_set1_ps(scale.zero)),
                       _mm512_set1_ps(scale.absmax));
}

/// Returns the table in bf16, in lanes of 32 bits, rounded as by
/// qlora_f32_to_bf16.
QLORA_AVX512 static __m512i roundedTableOf(__m512 table) {
  const __m512i bits = _mm512_castps_si512(table);
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i up =
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
  const __mmask16 isNaN = _mm512_cmp_ps_mask(table, table, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(_mm512_srli_epi32(up, 16), isNaN, quiet);
}

QLORA_AVX512 static __m512 wideOf(__m512i roundedTable) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(roundedTable, 16));
}

/// Returns the codes of eight bytes in lanes of 32 bits.
QLORA_AVX512 static __m512i sixteenCodes(__m128i bytes) {
  const __m512i wide = _mm512_cvtepu8_epi64(bytes);
  return _mm512_or_si512(_mm512_srli_epi64(wide, 4),
                         _mm512_slli_epi64(wide, 32));
}

/// Returns the codes of sixteen bytes in lanes of 16 bits.
QLORA_AVX512 static __m512i thirtyTwoCodes(__m128i bytes) {
  const __m512i wide = _mm512_cvtepu8_epi32(bytes);
  return _mm512_or_si512(_mm512_srli_epi32(wide, 4),
                         _mm512_slli_epi32(wide, 16));
}

/// Loads the bytes of `codes` codes, at most 32; the remaining bytes are 0.
QLORA_AVX512 static __m128i someBytes(const uint8_t *packed, int64_t codes) {
  const auto mask = static_cast<__mmask16>((1u << ((codes + 1) / 2)) - 1);
  return _mm_maskz_loadu_epi8(mask, packed);
}

QLORA_AVX512 static void lookUp(__m512 table, const uint8_t *packed,
                                int64_t count, float *out) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m128i bytes = _mm_loadl_epi64(
        reinterpret_cast<const __m128i *>(packed + i / 2));
    _mm512_storeu_ps(out + i,
                     _mm512_permutexvar_ps(sixteenCodes(bytes), table));
  }
  if (i == count)
    return;
  const __m512i codes = sixteenCodes(someBytes(packed + i / 2, count - i));
  const auto rest = static_cast<__mmask16>((1u << (count - i)) - 1);
  _mm512_mask_storeu_ps(out + i, rest, _mm512_permutexvar_ps(codes, table));
}

QLORA_AVX512 static void lookUpNarrow(__m512i table, const uint8_t *packed,
                                      int64_t count, uint16_t *out) {
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m128i bytes = _mm_loadu_si128(
        reinterpret_cast<const __m128i *>(packed + i / 2));
    _mm512_storeu_si512(out + i, _mm512_permutexvar_epi16(thirtyTwoCodes(bytes),
                                                          table));
  }
  if (i == count)
    return;
  const __m512i codes = thirtyTwoCodes(someBytes(packed + i / 2, count - i));
  const auto rest = static_cast<__mmask32>((uint64_t{1} << (count - i)) - 1);
  _mm512_mask_storeu_epi16(out + i, rest,
                           _mm512_permutexvar_epi16(codes, table));
}

QLORA_AVX512 static void runToF32(const StoredRun &run, float *out) {
  for (BlockCodes codes(run); codes.next(); out += codes.count)
    lookUp(tableOf(run.tensor.codeBook, codes.scale), codes.packed, codes.count,
           out);
}

QLORA_AVX512 static void runToRounded(const StoredRun &run, float *out) {
  for (BlockCodes codes(run); codes.next(); out += codes.count)
    lookUp(wideOf(roundedTableOf(tableOf(run.tensor.codeBook, codes.scale))),
           codes.packed, codes.count, out);
}

QLORA_AVX512 static void runToBF16(const StoredRun &run, uint16_t *out) {
  for (BlockCodes codes(run); codes.next(); out += codes.count) {
    const __m512i high =
        roundedTableOf(tableOf(run.tensor.codeBook, codes.scale));
    lookUpNarrow(_mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(high)),
                 codes.packed, codes.count, out);
  }
}

/// Returns a finite table as roundedTableOf() does, with fewer instructions.
QLORA_AVX512 static __m512 roundedFinite(__m512 table) {
  const __m512i bits = _mm512_castps_si512(table);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16),
                                       _mm512_set1_epi32(1));
  const __m512i up =
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return _mm512_castsi512_ps(
      _mm512_and_si512(up, _mm512_set1_epi32(int(0xffff0000))));
}

namespace {
/// The table of a block's values.
template <bool HasZeros> struct ExactTable {
  static constexpr bool kHasZeros = HasZeros;
  QLORA_AVX512 static __m512 of(__m512 book, ScaledFrom scale) {
    if constexpr (HasZeros)
      book = _mm512_sub_ps(book, _mm512_set1_ps(scale.zero));
    return _mm512_mul_ps(book, _mm512_set1_ps(scale.absmax));
  }
};
template <bool HasZeros> struct RoundedTable {
  static constexpr bool kHasZeros = HasZeros;
  QLORA_AVX512 static __m512 of(__m512 book, ScaledFrom scale) {
    const __m512 table = ExactTable<HasZeros>::of(book, scale);
    // An infinite or NaN scale makes the difference NaN.
    return scale.absmax - scale.absmax == 0 ? roundedFinite(table)
                                            : wideOf(roundedTableOf(table));
  }
};

/// The scales of blocks of a run, as many as fit: of the elements [first, end),
/// whose first block is `block`.
struct BlockScales {
  static constexpr int64_t kMost = 128;
  const StoredTensor &tensor;
  int64_t first, block, end;
  float absmax[kMost];

  BlockScales(const StoredRun &run, int64_t first)
      : tensor(run.tensor), first(first), block(first / tensor.block) {
    const int64_t after = run.first + run.count;
    const int64_t count =
        std::min(kMost, (after + tensor.block - 1) / tensor.block - block);
    end = std::min(after, (block + count) * tensor.block);
    absmaxOfBlocks(tensor, block, count, absmax);
  }
};

/// The lanes of some rows, in two vectors each.
template <int Rows> struct DotSums {
  __m512 low[Rows], high[Rows];

  QLORA_AVX512 void load(const float *lanes);
  QLORA_AVX512 void store(float *lanes) const;
  /// Adds the products of 32 values.
  QLORA_AVX512 void add(const float *x, int64_t stride, __m512 lowValues,
                        __m512 highValues);
};
} // namespace

constexpr int64_t kHalf = DecodeRun::kDotLanes / 2;

template <int Rows>
QLORA_AVX512 inline void DotSums<Rows>::load(const float *lanes) {
  QLORA_UNROLLED for (int r = 0; r < Rows; ++r) {
    low[r] = _mm512_loadu_ps(lanes + 2 * r * kHalf);
    high[r] = _mm512_loadu_ps(lanes + (2 * r + 1) * kHalf);
  }
}

template <int Rows>
QLORA_AVX512 inline void DotSums<Rows>::store(float *lanes) const {
  QLORA_UNROLLED for (int r = 0; r < Rows; ++r) {
    _mm512_storeu_ps(lanes + 2 * r * kHalf, low[r]);
    _mm512_storeu_ps(lanes + (2 * r + 1) * kHalf, high[r]);
  }
}

template <int Rows>
QLORA_AVX512 inline void DotSums<Rows>::add(const float *x, int64_t stride,
                                            __m512 lowValues,
                                            __m512 highValues) {
  QLORA_UNROLLED for (int r = 0; r < Rows; ++r) {
    const float *const row = x + r * stride;
    low[r] = _mm512_fmadd_ps(_mm512_loadu_ps(row), lowValues, low[r]);
    high[r] = _mm512_fmadd_ps(_mm512_loadu_ps(row + kHalf), highValues,
                              high[r]);
  }
}

/// Adds the products of `count` values with `Rows` rows. A byte's high nibble
/// is the code of an even element.
template <int Rows>
QLORA_AVX512 static inline void addBlock(__m512 table, const uint8_t *packed,
                                         int64_t count, const float *x,
                                         int64_t stride, DotSums<Rows> &sums) {
  prefetchAhead(packed);
  for (int64_t i = 0; i < count; i += 2 * kHalf) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(
        reinterpret_cast<const __m128i *>(packed + i / 2)));
    sums.add(x + i, stride,
             _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table),
             _mm512_permutexvar_ps(bytes, table));
  }
}

/// Adds the products of blocks with `Rows` rows.
template <typename Table, int Rows>
QLORA_AVX512 static void addRows(const BlockScales &blocks, const float *x,
                                 int64_t stride, float *lanes) {
  const StoredTensor tensor = blocks.tensor;
  const __m512 book = _mm512_loadu_ps(tensor.codeBook);
  DotSums<Rows> sums;
  sums.load(lanes);
  int64_t at = blocks.first, blockEnd = (blocks.block + 1) * tensor.block;
  for (int64_t i = 0; at < blocks.end; ++i, blockEnd += tensor.block) {
    const int64_t count = std::min(blockEnd, blocks.end) - at;
    const float zero = Table::kHasZeros ? tensor.zero(blocks.block + i) : 0;
    addBlock<Rows>(Table::of(book, {zero, blocks.absmax[i]}),
                   tensor.packed + at / 2, count, x, stride, sums);
    at += count;
    x += count;
  }
  sums.store(lanes);
}

template <typename Table>
static void addAllRows(const StoredRuns &runs, const DotRows<float> &rows) {
  forRuns(runs, rows, [](const StoredRun &run, const DotRows<float> &all) {
    DotRows<float> rest = all;
    for (int64_t first = run.first; first < run.first + run.count;) {
      const BlockScales blocks(run, first);
      forRowGroups(rest, [&](auto number, const float *x, float *lanes) {
        addRows<Table, number>(blocks, x, rest.stride, lanes);
      });
      rest.x += blocks.end - first;
      first = blocks.end;
    }
  });
}

/// Returns 16 bf16 values in f32.
QLORA_AVX512 static inline __m512 wideAt(const uint16_t *from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(
          reinterpret_cast<const __m256i *>(from))),
      16));
}

QLORA_AVX512 static inline __m512 wideAt(const float *from) {
  return _mm512_loadu_ps(from);
}

/// Returns `count` values, and zeros up to 16.
QLORA_AVX512 static inline __m512 wideAt(const float *from, int64_t count) {
  const int64_t bits = std::clamp<int64_t>(count, 0, kHalf);
  return _mm512_maskz_loadu_ps(__mmask16((1u << bits) - 1), from);
}

template <int Rows, typename W>
QLORA_AVX512 static void addDenseRows(const DenseRuns<W> &run, const float *x,
                                      int64_t stride, float *lanes) {
  DotSums<Rows> sums;
  sums.load(lanes);
  const W *const w = run.weights;
  int64_t i = 0;
  for (; i + 2 * kHalf <= run.count; i += 2 * kHalf) {
    prefetchAhead(w + i);
    sums.add(x + i, stride, wideAt(w + i), wideAt(w + i + kHalf));
  }
  if constexpr (std::is_same_v<W, float>)
    if (i < run.count)
      sums.add(x + i, stride, wideAt(w + i, run.count - i),
               wideAt(w + i + kHalf, run.count - i - kHalf));
  sums.store(lanes);
}

template <typename W>
static void addDense(const DenseRuns<W> &runs, const DotRows<float> &rows) {
  forRuns(runs, rows, [](const DenseRuns<W> &run, const DotRows<float> &all) {
    forRowGroups(all, [&](auto number, const float *x, float *lanes) {
      addDenseRows<number>(run, x, all.stride, lanes);
    });
  });
}

static void addDots(const StoredRuns &runs, const DotRows<float> &rows) {
  (runs.tensor.zeros ? addAllRows<ExactTable<true>>
                     : addAllRows<ExactTable<false>>)(runs, rows);
}

static void addRoundedDots(const StoredRuns &runs,
                           const DotRows<float> &rows) {
  (runs.tensor.zeros ? addAllRows<RoundedTable<true>>
                     : addAllRows<RoundedTable<false>>)(runs, rows);
}

const DecodeRun *findAvx512DecodeRun() {
  static constexpr DecodeRun kFunctions = {
      runToF32, runToRounded,   runToBF16, addDots, addRoundedDots,
      /*mostDotRows=*/INT64_MAX, /*splitsPairs=*/true, addDense, addDense};
  const bool isThere = __builtin_cpu_supports("avx512f") &&
                       __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl");
  return isThere ? &kFunctions : nullptr;
}

#else

const DecodeRun *findAvx512DecodeRun() { return nullptr; }

#endif

} // namespace qlora
