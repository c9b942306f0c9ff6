// SPDX-License-Identifier: MIT

// Rows of logits of the head: their softmax, and what takes their place for the
// gradients' products. A block has a row.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_HEADROWS_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_HEADROWS_CUH

#include "runtime/Kernels/Cuda/Device/Lanes.cuh"
#include "runtime/Kernels/Cuda/Device/TensorCore.cuh"

constexpr int kHeadThreads = 512;
constexpr int32_t kNoTarget = -100;

#define QLORA_HEAD_ROWS(Symbol, ...)                                           \
  QLORA_CUDA_SYMBOL(kHeadThreads, Symbol, __VA_ARGS__)

// A row is read twice: once for its largest logit and the sum of exponentials
// below the largest so far, then, where a gradient is asked for, to be replaced.
// Threads have kHeadWords words at a time, in vectors of four where rows begin
// at 16 bytes.

constexpr int kHeadWords = 16;
/// Words of the block at a time.
constexpr int64_t kHeadStep = int64_t(kHeadThreads) * kHeadWords;

struct HeadWords {
  float value[kHeadWords];

  /// Word i of a thread's kHeadWords, in a step that begins at 0.
  template <bool kWide> QLORA_DEVICE int word(int i) {
    const int thread = int(threadIdx.x);
    return kWide ? (i / 4 * kHeadThreads + thread) * 4 + i % 4
                 : i * kHeadThreads + thread;
  }

  /// Words of the row from `begin` on; `beyond` those that it has not.
  template <bool kWide>
  QLORA_DEVICE HeadWords load(const float *row, int64_t begin, int64_t vocab,
                              float beyond) {
    const float *from = row + begin;
    const int64_t count = vocab - begin;
    HeadWords words;
    QLORA_UNROLL
    for (int i = 0; i < kHeadWords; i += kWide ? 4 : 1) {
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

/// e^x for x <= 0 within 2^-22 + |x| 2^-23 of itself, 0 below -87.
QLORA_DEVICE float headExp(float x) { return qlora_exp2(x * 1.44269504f); }

/// The largest logit, and the first word that has it, as torch.argmax; and the
/// sum of e^(logit - base), where base is that logit, or a finite number below
/// all that are.
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
  __device__ void add(const HeadWords &words, int64_t begin) {
    float largest = words.value[0];
    QLORA_UNROLL
    for (int i = 1; i < kHeadWords; ++i)
      largest = fmaxf(largest, words.value[i]);
    if (largest > most) { // rare after the first few words of a row
      int first = 0;
      QLORA_UNROLL
      for (int i = kHeadWords - 1; i >= 0; --i)
        first = words.value[i] == largest ? i : first;
      most = largest;
      word = int32_t(begin) + HeadWords::word<kWide>(first);
      rebase();
    }
    float sums[4] = {0, 0, 0, 0};
    QLORA_UNROLL
    for (int i = 0; i < kHeadWords; ++i)
      sums[i % 4] += headExp(words.value[i] - base);
    sum += (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
};

/// The row's, in every thread: `sum` is that of all threads, in f64.
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
    softmax.add<kWide>(HeadWords::load<kWide>(logits, begin, vocab,
                                              qlora_from_bits(0xff800000u)),
                       begin);
  return reduceSoftmax(softmax);
}

/// The derivative of a capped logit by the one before; without a cap
/// `inverse` is 0.
QLORA_DEVICE float headSlope(float logit, float inverse) {
  const float t = logit * inverse;
  return 1.0f - t * t;
}

/// No gradient is asked for.
struct HeadNoGradient {
  static constexpr bool kExists = false;
};
struct HeadGradientF32 : qlora_f32 {
  static constexpr bool kExists = true;
};
struct HeadGradientBF16 : qlora_bf16 {
  static constexpr bool kExists = true;
};

/// logits := softmax times the slope of a cap, narrowed in place. What a step writes lies in words that
/// all threads must have read; after a barrier that is so for as many more words
/// as there were so far, so that barriers are few.
template <typename Gradient, bool kWide>
QLORA_DEVICE void writeSoftmax(float *logits, int64_t vocab, float lse,
                               float inverse) {
  constexpr int kNarrowing = 4 / int(sizeof(typename Gradient::storage));
  constexpr int kEach = kWide ? 4 : 1;
  int64_t readByAll = 0;
  QLORA_ROLL
  for (int64_t begin = 0; begin < vocab; begin += kHeadStep) {
    HeadWords words = HeadWords::load<kWide>(logits, begin, vocab, 0);
    if (kNarrowing > 1 && (begin + kHeadStep) / kNarrowing > readByAll) {
      __syncthreads();
      readByAll = begin + kHeadStep;
    }
    QLORA_UNROLL
    for (int i = 0; i < kHeadWords; i += kEach) {
      const int64_t at = begin + HeadWords::word<kWide>(i);
      if (at >= vocab)
        break;
      qlora_lanes<kEach> lanes;
      QLORA_UNROLL
      for (int lane = 0; lane < kEach; ++lane)
        lanes[lane] = headExp(words.value[i + lane] - lse) *
                      headSlope(words.value[i + lane], inverse);
      qlora_store_lanes<Gradient>(logits, at, lanes);
    }
  }
}

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_HEADROWS_CUH
