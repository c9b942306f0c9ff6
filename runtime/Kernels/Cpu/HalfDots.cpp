// SPDX-License-Identifier: MIT

// An instruction of AVX512_BF16 adds two products of bf16 to each f32 lane.
//
// A vector of 64 bytes has 128 codes of 4 bits, four in each lane of 16 bits. A
// shift moves one of them to the low bits of its lane. A permutation of the
// bf16 values of two blocks, 16 each, looks it up; bit 4 of an index selects
// the block. So the codes of adjacent elements are in different vectors, and x
// is arranged alike.

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

/// bf16 elements of a vector, codes of a vector and of half a vector, and f32
/// lanes of a vector.
constexpr int64_t kVector = 32, kCodes = HalfDots::kCodes, kHalf = kCodes / 2;
constexpr int64_t kFloats = RunDots::kLanes / 2;
/// Rows whose lanes are in registers at a time.
constexpr int kMostRows = 8;

/// The lanes of some rows, in two vectors each.
template <int Rows> struct HalfSums {
  __m512 low[Rows], high[Rows];

  QLORA_AVX512BF16 void load(const float *lanes) {
    QLORA_UNROLLED for (int r = 0; r < Rows; ++r) {
      low[r] = _mm512_loadu_ps(lanes + 2 * r * kFloats);
      high[r] = _mm512_loadu_ps(lanes + (2 * r + 1) * kFloats);
    }
  }
  QLORA_AVX512BF16 void store(float *lanes) const {
    QLORA_UNROLLED for (int r = 0; r < Rows; ++r) {
      _mm512_storeu_ps(lanes + 2 * r * kFloats, low[r]);
      _mm512_storeu_ps(lanes + (2 * r + 1) * kFloats, high[r]);
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

/// The scales and zero points of the half vectors of a run, then those of
/// padding: 0.
class HalfScales {
public:
  float absmax[RunDots::kMostElements / kHalf + 1];
  float zero[RunDots::kMostElements / kHalf + 1];

  /// Prepares for a run of `like`'s weight and length from `element` on. A
  /// cache line has the scales of many runs, so the hardware does not prefetch
  /// them.
  void start(const StoredRun &like, int64_t element) {
    first = element;
    absmax[like.count / kHalf] = zero[like.count / kHalf] = 0;
    const int64_t bytes = like.tensor.doubleQuant ? 1 : sizeof(float);
    __builtin_prefetch(static_cast<const uint8_t *>(like.tensor.scales) +
                       (blockOf(like, element) + kAhead) * bytes);
  }
  void read(const StoredRun &run, int64_t half) {
    const int64_t block = blockOf(run, first + half * kHalf);
    absmax[half] = run.tensor.absmax(block);
    zero[half] = run.tensor.zero(block);
  }

private:
  static constexpr int64_t kAhead = 512; // blocks
  static int64_t blockOf(const StoredRun &run, int64_t element) {
    return run.scaleShift < 0 ? element / run.tensor.block
                              : element >> run.scaleShift;
  }
  int64_t first = 0;
};

} // namespace

template <bool HasZeros>
QLORA_AVX512BF16 static inline __m512
valuesOf(__m512 book, const HalfScales &scales, int64_t half) {
  if (HasZeros)
    book = _mm512_sub_ps(book, _mm512_set1_ps(scales.zero[half]));
  return _mm512_mul_ps(book, _mm512_set1_ps(scales.absmax[half]));
}

/// Returns the values of the blocks of two halves, in bf16.
template <bool HasZeros>
QLORA_AVX512BF16 static inline __m512i
tableOf(__m512 book, const HalfScales &scales, int64_t half) {
  const __m512 first = valuesOf<HasZeros>(book, scales, half);
  const __m512 second = valuesOf<HasZeros>(book, scales, half + 1);
  return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

/// Looks up the codes in the low four bits of each lane.
QLORA_AVX512BF16 static inline __m512i lookUp(__m512i table, __m512i codes) {
  constexpr int64_t kSecond = 0x0010'0010'0010'0010;
  const __m512i block =
      _mm512_set_epi64(kSecond, kSecond, kSecond, kSecond, 0, 0, 0, 0);
  const __m512i code = _mm512_and_si512(codes, _mm512_set1_epi16(15));
  return _mm512_permutexvar_epi16(_mm512_or_si512(code, block), table);
}

/// Adds the products of 128 values. A byte's high nibble is the code of an even
/// element.
template <int Rows>
QLORA_AVX512BF16 static inline void
addCodes(__m512i bytes, __m512i table, const uint16_t *x, int64_t stride,
         HalfSums<Rows> &sums) {
  sums.add(x, stride, lookUp(table, _mm512_srli_epi16(bytes, 4)),
           lookUp(table, bytes));
  sums.add(x + 2 * kVector, stride, lookUp(table, _mm512_srli_epi16(bytes, 12)),
           lookUp(table, _mm512_srli_epi16(bytes, 8)));
}

/// Adds the products of a run with `Rows` rows. Meanwhile reads the scales of
/// the next run, which takes few scalar instructions and hardly any time.
template <bool HasZeros, int Rows>
QLORA_AVX512BF16 static void
addCodesOfRun(const StoredRun &run, const HalfScales &scales, HalfScales &next,
              const uint16_t *x, int64_t stride, float *lanes) {
  const __m512 book = _mm512_loadu_ps(run.tensor.codeBook);
  const uint8_t *packed = run.tensor.packed + run.first / 2;
  HalfSums<Rows> sums;
  sums.load(lanes);
  int64_t i = 0, half = 0;
  for (; i + kCodes <= run.count; i += kCodes, half += 2) {
    prefetchAhead(packed + i / 2);
    addCodes(_mm512_loadu_si512(packed + i / 2),
             tableOf<HasZeros>(book, scales, half), x + i, stride, sums);
    next.read(run, half);
    next.read(run, half + 1);
  }
  if (i < run.count) {
    addCodes(_mm512_maskz_loadu_epi8(0xffffffff, packed + i / 2),
             tableOf<HasZeros>(book, scales, half), x + i, stride, sums);
    next.read(run, half);
  }
  sums.store(lanes);
}

template <bool HasZeros>
static void addStoredRuns(const StoredRuns &runs,
                          const DotRows<uint16_t> &rows) {
  HalfScales both[2];
  HalfScales *scales = both, *next = both + 1;
  scales->start(runs, runs.first);
  for (int64_t half = 0; half < runs.count / kHalf; ++half)
    scales->read(runs, half);
  const int64_t last = runs.first + (runs.outputs - 1) * runs.stride;
  forRuns(runs, rows, [&](const StoredRun &run, const DotRows<uint16_t> &all) {
    next->start(run, std::min(run.first + runs.stride, last));
    forRowGroups<kMostRows>(
        all, [&](auto number, const uint16_t *x, float *lanes) {
          addCodesOfRun<HasZeros, number>(run, *scales, *next, x, all.stride,
                                          lanes);
        });
    std::swap(scales, next);
  });
}

static void addStored(const StoredRuns &runs, const DotRows<uint16_t> &rows) {
  (runs.tensor.zeros ? addStoredRuns<true> : addStoredRuns<false>)(runs, rows);
}

/// Returns 32 weights in bf16.
QLORA_AVX512BF16 static inline __m512i halvesAt(const uint16_t *from) {
  return _mm512_loadu_si512(from);
}
QLORA_AVX512BF16 static inline __m512i halvesAt(const float *from) {
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + kFloats),
                                      _mm512_loadu_ps(from));
}

/// Returns `count` weights, and zeros up to 32.
QLORA_AVX512BF16 static inline __m512i halvesAt(const float *from,
                                                int64_t count) {
  const int64_t bits = std::clamp<int64_t>(count, 0, kVector);
  const auto mask = uint32_t((uint64_t{1} << bits) - 1);
  return (__m512i)_mm512_cvtne2ps_pbh(
      _mm512_maskz_loadu_ps(__mmask16(mask >> kFloats), from + kFloats),
      _mm512_maskz_loadu_ps(__mmask16(mask), from));
}

template <int Rows, typename W>
QLORA_AVX512BF16 static void addDenseRows(const DenseRuns<W> &run,
                                          const uint16_t *x, int64_t stride,
                                          float *lanes) {
  HalfSums<Rows> sums;
  sums.load(lanes);
  const W *const w = run.weights;
  int64_t i = 0;
  for (; i + 2 * kVector <= run.count; i += 2 * kVector) {
    for (int64_t ahead = 0; ahead < 2 * kVector; ahead += 64 / sizeof(W))
      prefetchAhead(w + i + ahead);
    sums.add(x + i, stride, halvesAt(w + i), halvesAt(w + i + kVector));
  }
  if constexpr (std::is_same_v<W, float>)
    if (const int64_t rest = run.count - i; rest > 0)
      sums.add(x + i, stride, halvesAt(w + i, rest),
               rest > kVector ? halvesAt(w + i + kVector, rest - kVector)
                              : _mm512_setzero_si512());
  sums.store(lanes);
}

template <typename W>
static void addDense(const DenseRuns<W> &runs, const DotRows<uint16_t> &rows) {
  forRuns(runs, rows,
          [](const DenseRuns<W> &run, const DotRows<uint16_t> &all) {
            forRowGroups<kMostRows>(all, [&](auto number, const uint16_t *x,
                                             float *lanes) {
              addDenseRows<number>(run, x, all.stride, lanes);
            });
          });
}

const HalfDots *HalfDots::find() {
  static constexpr HalfDots kFunctions = {addStored, addDense, addDense};
  static const bool isThere = __builtin_cpu_supports("avx512bf16") &&
                              __builtin_cpu_supports("avx512bw") &&
                              __builtin_cpu_supports("avx512vl");
  return isThere ? &kFunctions : nullptr;
}

#else

const HalfDots *HalfDots::find() { return nullptr; }

#endif

} // namespace qlora
