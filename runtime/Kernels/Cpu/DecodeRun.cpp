// SPDX-License-Identifier: MIT

// Decodes 4-bit codes with permutations of AVX-512. A permutation uses only the
// low bits of a lane as index into the table, so higher bits need not be
// cleared: a byte b becomes b >> 4 in one lane and b in the next. For f32 the
// table has 16 values and an index 4 bits. For bf16 the table has the 16 values
// twice, so the fifth bit of an index does not matter.

#include "runtime/Kernels/Cpu/Decode.h"

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

/// Adds the products of `count` values and x to 32 lanes.
QLORA_AVX512 static void addLookedUp(__m512 table, const BlockCodes &codes,
                                     const float *x, __m512 &low,
                                     __m512 &high) {
  const auto values = [&](int64_t at) QLORA_AVX512 {
    return _mm512_permutexvar_ps(
        sixteenCodes(_mm_loadl_epi64(
            reinterpret_cast<const __m128i *>(codes.packed + at / 2))),
        table);
  };
  for (int64_t i = 0; i < codes.count; i += DecodeRun::kDotLanes) {
    low = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), values(i), low);
    high = _mm512_fmadd_ps(_mm512_loadu_ps(x + i + 16), values(i + 16), high);
  }
}

QLORA_AVX512 static void addDots(const StoredRun &run, const float *x,
                                 float *sums) {
  __m512 low = _mm512_loadu_ps(sums), high = _mm512_loadu_ps(sums + 16);
  for (BlockCodes codes(run); codes.next(); x += codes.count)
    addLookedUp(tableOf(run.tensor.codeBook, codes.scale), codes, x, low, high);
  _mm512_storeu_ps(sums, low);
  _mm512_storeu_ps(sums + 16, high);
}

QLORA_AVX512 static void addRoundedDots(const StoredRun &run, const float *x,
                                        float *sums) {
  __m512 low = _mm512_loadu_ps(sums), high = _mm512_loadu_ps(sums + 16);
  for (BlockCodes codes(run); codes.next(); x += codes.count)
    addLookedUp(wideOf(roundedTableOf(
                    tableOf(run.tensor.codeBook, codes.scale))),
                codes, x, low, high);
  _mm512_storeu_ps(sums, low);
  _mm512_storeu_ps(sums + 16, high);
}

const DecodeRun *findAvx512DecodeRun() {
  static constexpr DecodeRun kFunctions = {runToF32, runToRounded, runToBF16,
                                           addDots, addRoundedDots};
  const bool isThere = __builtin_cpu_supports("avx512f") &&
                       __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl");
  return isThere ? &kFunctions : nullptr;
}

#else

const DecodeRun *findAvx512DecodeRun() { return nullptr; }

#endif

} // namespace qlora
