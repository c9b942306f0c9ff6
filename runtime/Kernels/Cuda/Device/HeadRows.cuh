// SPDX-License-Identifier: MIT

// Softmax of rows of the LM head's logits, one block per row. For a gradient,
// the result overwrites the logits, and the GEMMs read it.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_HEADROWS_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_HEADROWS_CUH

#include "runtime/Kernels/Cuda/Device/Lanes.cuh"
#include "runtime/Kernels/Cuda/Device/TensorCore.cuh"

constexpr int kHeadThreads = 512;
constexpr int32_t kNoTarget = -100;

#define QLORA_HEAD_ROWS(Symbol, ...)                                           \
  QLORA_CUDA_SYMBOL(kHeadThreads, Symbol, __VA_ARGS__)

// A block reads a row once to compute its largest logit and its sum of
// exponentials, relative to the largest logit so far. For a gradient, it reads
// the row again and overwrites it. A thread loads kHeadTokens logits at a time,
// in vectors of four if rows are aligned to 16 bytes.

constexpr int kHeadTokens = 16;
/// Number of logits that the block processes at a time.
constexpr int64_t kHeadStep = int64_t(kHeadThreads) * kHeadTokens;

struct HeadTokens {
  float value[kHeadTokens];

  /// Returns the index of a thread's logit i within kHeadStep logits.
  template <bool kWide> QLORA_DEVICE int word(int i) {
    const int thread = int(threadIdx.x);
    return kWide ? (i / 4 * kHeadThreads + thread) * 4 + i % 4
                 : i * kHeadThreads + thread;
  }

  /// Loads logits from `begin` on. Positions after the last token get `beyond`.
  template <bool kWide>
  QLORA_DEVICE HeadTokens load(const float *row, int64_t begin, int64_t vocab,
                               float beyond) {
    const float *from = row + begin;
    const int64_t count = vocab - begin;
    HeadTokens words;
    QLORA_UNROLL
    for (int i = 0; i < kHeadTokens; i += kWide ? 4 : 1) {
      const int at = word<kWide>(i);
      if constexpr (kWide) {
        const qlora_lanes<4> four =
            at < count ? qlora_load_lanes<qlora_f32, 4>(from, at)
                       : qlora_lanes<4>{beyond, beyond, beyond, beyond};
        QLORA_UNROLL
        for (int lane = 0; lane < 4; ++lane)
          words.value[i + lane] = four[lane];
      } else {
        words.value[i] = at < count ? from[at] : beyond;
      }
    }
    return words;
  }
};

/// Returns e^x for x <= 0; relative error 2^-22 + |x| 2^-23; 0 below -87.
QLORA_DEVICE float headExp(float x) { return qlora_exp2(x * 1.44269504f); }

/// The largest logit `most`, its first index `word` (as in torch.argmax), and
/// `sum` of e^(logit - base). `base` is `most`, or -FLT_MAX if `most` is -inf.
struct HeadSoftmax {
  float most = qlora_from_bits(0xff800000u);
  int32_t word = 0x7fffffff;
  float base = qlora_from_bits(0xff7fffffu);
  float sum = 0;

  __device__ void takeMaximum(float other, int32_t otherWord) {
    const bool isFirst = other > most || (other == most && otherWord < word);
    most = isFirst ? other : most;
    word = isFirst ? otherWord : word;
  }

  __device__ void rebase() {
    const float before = base;
    base = qlora_max(most, base);
    sum *= headExp(before - base);
  }

  template <bool kWide>
  __device__ void add(const HeadTokens &words, int64_t begin) {
    float largest = words.value[0];
    QLORA_UNROLL
    for (int i = 1; i < kHeadTokens; ++i)
      largest = fmaxf(largest, words.value[i]);
    if (largest > most) { // rare after the start of a row
      int first = 0;
      QLORA_UNROLL
      for (int i = kHeadTokens - 1; i >= 0; --i)
        first = words.value[i] == largest ? i : first;
      most = largest;
      word = int32_t(begin) + HeadTokens::word<kWide>(first);
      rebase();
    }
    float sums[4] = {0, 0, 0, 0};
    QLORA_UNROLL
    for (int i = 0; i < kHeadTokens; ++i)
      sums[i % 4] += headExp(words.value[i] - base);
    sum += (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
};

/// Softmax state of a row, in every thread; `sum` is over all threads, in f64.
struct HeadRow {
  int32_t word;
  float base;
  double sum;
};

QLORA_DEVICE HeadRow reduceSoftmax(HeadSoftmax mine) {
  __shared__ float mosts[kHeadThreads / kQloraWarp];
  __shared__ int32_t words[kHeadThreads / kQloraWarp];
  HeadSoftmax row = mine;
  for (int offset = kQloraWarp / 2; offset > 0; offset /= 2)
    row.takeMaximum(__shfl_xor_sync(0xffffffffu, row.most, offset),
                    __shfl_xor_sync(0xffffffffu, row.word, offset));
  if (threadIdx.x % kQloraWarp == 0) {
    mosts[threadIdx.x / kQloraWarp] = row.most;
    words[threadIdx.x / kQloraWarp] = row.word;
  }
  __syncthreads();
  for (int warp = 0; warp < kHeadThreads / kQloraWarp; ++warp)
    row.takeMaximum(mosts[warp], words[warp]);
  row.rebase();
  const double sum = double(mine.sum) * headExp(mine.base - row.base);
  return {row.word, row.base, qlora_block_sum(sum)};
}

template <bool kWide>
QLORA_DEVICE HeadRow readRow(const float *logits, int64_t vocab) {
  HeadSoftmax softmax;
  QLORA_ROLL
  for (int64_t begin = 0; begin < vocab; begin += kHeadStep)
    softmax.add<kWide>(HeadTokens::load<kWide>(logits, begin, vocab,
                                               qlora_from_bits(0xff800000u)),
                       begin);
  return reduceSoftmax(softmax);
}

/// Returns the derivative of a capped logit with respect to the uncapped logit.
/// `inverse` is 1 / cap, or 0 without a cap.
QLORA_DEVICE float headSlope(float logit, float inverse) {
  const float t = logit * inverse;
  return 1.0f - t * t;
}

/// Returns the sum of a row's logits, in every thread.
QLORA_DEVICE double rowTotal(const float *logits, int64_t vocab) {
  double sum = 0;
  for (int64_t word = threadIdx.x; word < vocab; word += kHeadThreads)
    sum += double(logits[word]);
  return qlora_block_sum(sum);
}

/// What the gradient of a row's logits has besides softmax: it is (softmax -
/// share) * scale * slope of the cap, and `inverse` is headSlope's.
struct HeadTerms {
  float inverse;
  float share = 0;
  float scale = 1;
};

/// Types of the logits' gradient: none, f32, bf16.
struct HeadNoGradient {
  static constexpr bool kExists = false;
};
struct HeadGradientF32 : qlora_f32 {
  static constexpr bool kExists = true;
};
struct HeadGradientBF16 : qlora_bf16 {
  static constexpr bool kExists = true;
};

/// Replaces logits in place by their gradient without a label, rounded to
/// Gradient. The first n bf16 results overwrite the first n / 2 logits, which
/// all threads must have read before. So the block needs a barrier only
/// each time the number of logits read has doubled.
template <typename Gradient, bool kWide>
QLORA_DEVICE void writeSoftmax(float *logits, int64_t vocab, float lse,
                               const HeadTerms &terms) {
  constexpr int kNarrowing = 4 / int(sizeof(typename Gradient::storage));
  constexpr int kEach = kWide ? 4 : 1;
  int64_t readByAll = 0;
  QLORA_ROLL
  for (int64_t begin = 0; begin < vocab; begin += kHeadStep) {
    HeadTokens words = HeadTokens::load<kWide>(logits, begin, vocab, 0);
    if (kNarrowing > 1 && (begin + kHeadStep) / kNarrowing > readByAll) {
      __syncthreads();
      readByAll = begin + kHeadStep;
    }
    QLORA_UNROLL
    for (int i = 0; i < kHeadTokens; i += kEach) {
      const int64_t at = begin + HeadTokens::word<kWide>(i);
      if (at >= vocab)
        break;
      qlora_lanes<kEach> lanes;
      QLORA_UNROLL
      for (int lane = 0; lane < kEach; ++lane)
        lanes[lane] =
            (headExp(words.value[i + lane] - lse) - terms.share) * terms.scale *
            headSlope(words.value[i + lane], terms.inverse);
      qlora_store_lanes<Gradient>(logits, at, lanes);
    }
  }
}

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_HEADROWS_CUH
