// SPDX-License-Identifier: MIT

// Decodes 4-bit codes with byte shuffles of AVX2. A shuffle looks up 32 codes
// in a table of 16 bytes. So the table of 16 values is split into planes: plane
// b has byte b of each value. Look-ups in all planes, interleaved, give the
// values: four planes f32, two planes bf16.

#include "runtime/Kernels/Cpu/Decode.h"

#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace qlora {

#ifdef __x86_64__

#define QLORA_AVX2 __attribute__((target("avx2,fma")))

namespace {

/// Codes that are looked up at a time.
constexpr int64_t kCodes = 32;

/// Planes of a table, each twice, because a shuffle works within 16 bytes.
struct Planes {
  __m256i each[4];
};

/// The 16 values of a table.
struct Table {
  __m256 low, high;
};

} // namespace

QLORA_AVX2 static inline __m256i twice(__m128i half) {
  return _mm256_broadcastsi128_si256(half);
}

QLORA_AVX2 static inline __m256 scaled(__m256 values, ScaledFrom scale) {
  return _mm256_mul_ps(_mm256_sub_ps(values, _mm256_set1_ps(scale.zero)),
                       _mm256_set1_ps(scale.absmax));
}

/// Returns the planes of 16 values of 32 bits, given in two halves.
QLORA_AVX2 static inline Planes planesOf(__m256i low, __m256i high) {
  // Byte b of four values to bytes [4b, 4b + 4), for each 16 bytes.
  const __m256i gather = twice(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10,
                                             14, 3, 7, 11, 15));
  const __m256i a = _mm256_shuffle_epi8(low, gather);
  const __m256i b = _mm256_shuffle_epi8(high, gather);
  const __m128i a0 = _mm256_castsi256_si128(a);
  const __m128i a1 = _mm256_extracti128_si256(a, 1);
  const __m128i b0 = _mm256_castsi256_si128(b);
  const __m128i b1 = _mm256_extracti128_si256(b, 1);
  const __m128i aFirst = _mm_unpacklo_epi32(a0, a1);
  const __m128i bFirst = _mm_unpacklo_epi32(b0, b1);
  const __m128i aLast = _mm_unpackhi_epi32(a0, a1);
  const __m128i bLast = _mm_unpackhi_epi32(b0, b1);
  return {{twice(_mm_unpacklo_epi64(aFirst, bFirst)),
           twice(_mm_unpackhi_epi64(aFirst, bFirst)),
           twice(_mm_unpacklo_epi64(aLast, bLast)),
           twice(_mm_unpackhi_epi64(aLast, bLast))}};
}

/// Rounds values to bf16 as qlora_f32_to_bf16, in lanes of 32 bits.
QLORA_AVX2 static inline __m256i rounded(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i up =
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i isNaN =
      _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), quiet, isNaN);
}

/// Returns 32 codes, one in each byte. Byte 2i and 2i + 1 come from the packed
/// byte that `order` has at 2i and 2i + 1: the high nibble, then the low one.
QLORA_AVX2 static inline __m256i codesOf(const uint8_t *packed,
                                         __m256i order) {
  const __m256i bytes = _mm256_shuffle_epi8(
      twice(_mm_loadu_si128(reinterpret_cast<const __m128i *>(packed))), order);
  const __m256i first = _mm256_and_si256(_mm256_srli_epi16(bytes, 4),
                                         _mm256_set1_epi16(0x000f));
  const __m256i second = _mm256_and_si256(bytes, _mm256_set1_epi16(0x0f00));
  return _mm256_or_si256(first, second);
}

/// Interleaving works within 16 bytes. In this order, results of 32 bits are
/// eight consecutive elements.
QLORA_AVX2 static inline __m256i wideOrder() {
  return _mm256_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13, 2,
                          2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15);
}

/// In this order, results of 16 bits are sixteen consecutive elements.
QLORA_AVX2 static inline __m256i narrowOrder() {
  return _mm256_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 8, 8, 9, 9, 10, 10, 11, 11, 4,
                          4, 5, 5, 6, 6, 7, 7, 12, 12, 13, 13, 14, 14, 15, 15);
}

template <typename Decoder>
QLORA_AVX2 static inline void storeValues(const Decoder &decoder,
                                          const uint8_t *packed, float *out) {
  __m256 values[4];
  decoder.look(packed, values);
  for (int i = 0; i < 4; ++i)
    _mm256_storeu_ps(out + 8 * i, values[i]);
}

namespace {

/// Decode 32 codes of a block. A constructor gets the code book, setScale() the
/// scale of each block.
template <bool HasZeros> class ToF32 {
public:
  using Number = float;
  QLORA_AVX2 explicit ToF32(Table book)
      : planes(planesOf(_mm256_castps_si256(book.low),
                        _mm256_castps_si256(book.high))) {}
  QLORA_AVX2 void setScale(ScaledFrom scale) {
    zero = _mm256_set1_ps(scale.zero);
    absmax = _mm256_set1_ps(scale.absmax);
  }
  QLORA_AVX2 void look(const uint8_t *packed, __m256 (&values)[4]) const;
  QLORA_AVX2 void decode(const uint8_t *packed, float *out) const {
    storeValues(*this, packed, out);
  }

private:
  Planes planes;
  __m256 zero = {}, absmax = {};
};

/// Has the planes of a block's table, scaled and rounded to bf16.
class ToBF16 {
public:
  using Number = uint16_t;
  QLORA_AVX2 explicit ToBF16(Table book) : book(book) {}
  QLORA_AVX2 void setScale(ScaledFrom scale) {
    planes = planesOf(rounded(scaled(book.low, scale)),
                      rounded(scaled(book.high, scale)));
  }
  QLORA_AVX2 void decode(const uint8_t *packed, uint16_t *out) const;

protected:
  Table book;
  Planes planes = {};
};

class ToRounded : public ToBF16 {
public:
  using Number = float;
  using ToBF16::ToBF16;
  QLORA_AVX2 void look(const uint8_t *packed, __m256 (&values)[4]) const;
  QLORA_AVX2 void decode(const uint8_t *packed, float *out) const {
    storeValues(*this, packed, out);
  }
};

} // namespace

template <bool HasZeros>
QLORA_AVX2 inline void
ToF32<HasZeros>::look(const uint8_t *packed, __m256 (&values)[4]) const {
  const __m256i codes = codesOf(packed, wideOrder());
  __m256i bytes[4];
  for (int i = 0; i < 4; ++i)
    bytes[i] = _mm256_shuffle_epi8(planes.each[i], codes);
  const __m256i first[] = {_mm256_unpacklo_epi8(bytes[0], bytes[1]),
                           _mm256_unpacklo_epi8(bytes[2], bytes[3])};
  const __m256i last[] = {_mm256_unpackhi_epi8(bytes[0], bytes[1]),
                          _mm256_unpackhi_epi8(bytes[2], bytes[3])};
  const __m256i bits[] = {_mm256_unpacklo_epi16(first[0], first[1]),
                          _mm256_unpackhi_epi16(first[0], first[1]),
                          _mm256_unpacklo_epi16(last[0], last[1]),
                          _mm256_unpackhi_epi16(last[0], last[1])};
  for (int i = 0; i < 4; ++i) {
    values[i] = _mm256_castsi256_ps(bits[i]);
    if constexpr (HasZeros)
      values[i] = _mm256_sub_ps(values[i], zero);
    values[i] = _mm256_mul_ps(values[i], absmax);
  }
}

QLORA_AVX2 inline void ToBF16::decode(const uint8_t *packed,
                                      uint16_t *out) const {
  const __m256i codes = codesOf(packed, narrowOrder());
  const __m256i low = _mm256_shuffle_epi8(planes.each[0], codes);
  const __m256i high = _mm256_shuffle_epi8(planes.each[1], codes);
  auto *const to = reinterpret_cast<__m256i *>(out);
  _mm256_storeu_si256(to, _mm256_unpacklo_epi8(low, high));
  _mm256_storeu_si256(to + 1, _mm256_unpackhi_epi8(low, high));
}

QLORA_AVX2 inline void ToRounded::look(const uint8_t *packed,
                                       __m256 (&values)[4]) const {
  const __m256i codes = codesOf(packed, wideOrder());
  const __m256i low = _mm256_shuffle_epi8(planes.each[0], codes);
  const __m256i high = _mm256_shuffle_epi8(planes.each[1], codes);
  const __m256i first = _mm256_unpacklo_epi8(low, high);
  const __m256i last = _mm256_unpackhi_epi8(low, high);
  const __m256i none = _mm256_setzero_si256();
  values[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(none, first));
  values[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(none, first));
  values[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(none, last));
  values[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(none, last));
}

/// Decodes the last codes of a block, fewer than kCodes, from a copy.
template <typename Decoder>
QLORA_AVX2 static __attribute__((noinline)) void
decodeLast(const Decoder &decoder, const uint8_t *packed, size_t count,
           typename Decoder::Number *out) {
  uint8_t bytes[kCodes / 2] = {};
  typename Decoder::Number values[kCodes];
  std::memcpy(bytes, packed, (count + 1) / 2);
  decoder.decode(bytes, values);
  std::memcpy(out, values, count * sizeof(values[0]));
}

QLORA_AVX2 static inline Table codeBookOf(const StoredRun &run) {
  return {_mm256_loadu_ps(run.tensor.codeBook),
          _mm256_loadu_ps(run.tensor.codeBook + 8)};
}

template <typename Decoder>
QLORA_AVX2 static void decodeRun(const StoredRun &run,
                                 typename Decoder::Number *out) {
  Decoder decoder(codeBookOf(run));
  for (BlockCodes codes(run); codes.next(); out += codes.count) {
    decoder.setScale(codes.scale);
    int64_t i = 0;
    for (; i + kCodes <= codes.count; i += kCodes)
      decoder.decode(codes.packed + i / 2, out + i);
    if (i < codes.count)
      decodeLast(decoder, codes.packed + i / 2,
                 static_cast<size_t>(codes.count - i), out + i);
  }
}

template <typename Decoder>
QLORA_AVX2 static void addRun(const StoredRun &run, const float *x,
                              float *sums) {
  static_assert(kCodes == DecodeRun::kDotLanes);
  Decoder decoder(codeBookOf(run));
  __m256 lanes[4];
  for (int i = 0; i < 4; ++i)
    lanes[i] = _mm256_loadu_ps(sums + 8 * i);
  for (BlockCodes codes(run); codes.next();) {
    decoder.setScale(codes.scale);
    for (int64_t done = 0; done < codes.count; done += kCodes, x += kCodes) {
      __m256 values[4];
      decoder.look(codes.packed + done / 2, values);
      for (int i = 0; i < 4; ++i)
        lanes[i] = _mm256_fmadd_ps(_mm256_loadu_ps(x + 8 * i), values[i],
                                   lanes[i]);
    }
  }
  for (int i = 0; i < 4; ++i)
    _mm256_storeu_ps(sums + 8 * i, lanes[i]);
}

/// For one row: more rows need more registers than there are.
template <typename Decoder>
static void addProducts(const StoredRuns &runs, const DotRows<float> &rows) {
  forRuns(runs, rows, [](const StoredRun &run, const DotRows<float> &row) {
    addRun<Decoder>(run, row.x, row.sums);
  });
}

QLORA_AVX2 static void runToF32(const StoredRun &run, float *out) {
  (run.tensor.zeros ? decodeRun<ToF32<true>> : decodeRun<ToF32<false>>)(run,
                                                                        out);
}

static void addDots(const StoredRuns &runs, const DotRows<float> &rows) {
  (runs.tensor.zeros ? addProducts<ToF32<true>>
                     : addProducts<ToF32<false>>)(runs, rows);
}

const DecodeRun *findAvx2DecodeRun() {
  static constexpr DecodeRun kFunctions = {
      runToF32, decodeRun<ToRounded>, decodeRun<ToBF16>, addDots,
      addProducts<ToRounded>, /*mostDotRows=*/1, /*splitsPairs=*/false,
      /*addBF16Dots=*/nullptr, /*addF32Dots=*/nullptr};
  const bool isThere =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return isThere ? &kFunctions : nullptr;
}

#else

const DecodeRun *findAvx2DecodeRun() { return nullptr; }

#endif

} // namespace qlora
