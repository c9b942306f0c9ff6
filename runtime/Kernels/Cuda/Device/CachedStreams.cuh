// SPDX-License-Identifier: MIT

// The streams of cached_attention (Caches.cuh): the sums of one range's keys.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_CACHEDSTREAMS_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_CACHEDSTREAMS_CUH

#include "runtime/Kernels/Cuda/Device/Caches.cuh"

using LaneDims = qlora_lanes<kLaneDims>;

/// One lane of a stream that has kLanes lanes, and the stream's sums over its
/// keys of a range, in the lane's dimensions. If kIsWide, a head has at most
/// kLanes * kLaneDims dimensions, a multiple of kLaneDims, and the caches are
/// aligned to 16 bytes.
template <typename Cache, int kLanes, bool kIsWide> struct Stream {
  static constexpr int kWidth = kLanes * kLaneDims;
  static constexpr int kStreams = kCachedThreads / kLanes;
  static constexpr int kOfWarp = kQloraWarp / kLanes;
  static constexpr int kWarpKeys = kOfWarp * kBatchKeys;

  const CachedShape &shape;
  const CachedPlace &at;
  const CachedRun &run;
  float query[kCachedRows][kLaneDims];
  float maximum[kCachedRows], sum[kCachedRows];
  LaneDims value[kCachedRows];

  __device__ int lane() const { return int(threadIdx.x) % kLanes; }
  __device__ int index() const { return int(threadIdx.x) / kLanes; }

  /// Loads the lane's dimensions of all rows, for dimensions from `first` on.
  __device__ void loadQueries(int first) {
    if (shape.isHalf)
      loadQueriesAs<qlora_bf16>(first);
    else
      loadQueriesAs<qlora_f32>(first);
  }
  template <typename Q> __device__ void loadQueriesAs(int first) {
    QLORA_UNROLL
    for (int row = 0; row < kCachedRows; ++row) {
      const int own = row < run.rows ? row : 0;
      const int64_t from = run.tokenOf(own) * shape.ldq +
                           int64_t(at.head + run.headOf(own)) * shape.dim;
      QLORA_UNROLL
      for (int i = 0; i < kLaneDims; ++i) {
        const int d = first + lane() * kLaneDims + i;
        const float x =
            Q::load(shape.args.buffers[0], from + (d < shape.dim ? d : 0));
        query[row][i] = d < shape.dim ? x : 0.0f;
      }
    }
  }

  /// Loads dimensions of the key or value of an entry. Dimensions after the
  /// last get other values of the row; their query is 0.
  __device__ LaneDims load(int operand, uint32_t entry, int first) const {
    const int64_t head = (run.entry + entry) * shape.keyHeads + at.keyHead;
    const auto *from = qlora_at<typename Cache::storage>(
        shape.args.buffers[operand], head * shape.dim);
    const int d = first + lane() * kLaneDims;
    LaneDims lanes;
    if constexpr (kIsWide) {
      lanes = qlora_load_lanes<Cache, kLaneDims>(from, d < shape.dim ? d : 0);
    } else {
      QLORA_UNROLL
      for (int i = 0; i < kLaneDims; ++i)
        lanes[i] = Cache::load(from, d + i < shape.dim ? d + i : 0);
    }
    if constexpr (Int8Cache::hasScales<Cache>) {
      const float scale = Int8Cache::of(shape.args.buffers[operand],
                                        shape.tokens, shape.keyWidth())
                              .scales[head];
      QLORA_UNROLL
      for (int i = 0; i < kLaneDims; ++i)
        lanes[i] = __fmul_rn(lanes[i], scale);
    }
    return lanes;
  }

  __device__ void clear() {
    QLORA_UNROLL
    for (int row = 0; row < kCachedRows; ++row) {
      maximum[row] = cachedNone();
      sum[row] = 0;
      value[row] = {};
    }
  }

  /// Adds this stream's keys of a range. A warp's keys are adjacent.
  __device__ void addRange(uint32_t range) {
    const uint32_t begin = range * kRangeKeys;
    const uint32_t entry = begin % uint32_t(shape.tokens.entries);
    QLORA_ROLL
    for (uint32_t i = threadIdx.x / kQloraWarp * kWarpKeys; i < kRangeKeys;
         i += kCachedWarps * kWarpKeys)
      if (begin + i <= run.last && begin + i + kWarpKeys > run.first)
        addBatch(begin + i, entry + i);
  }

  /// Returns how far the stream's key i is behind the warp's first key.
  __device__ uint32_t offsetOf(int i) const {
    return uint32_t(index() % kOfWarp + i * kOfWarp);
  }

  /// Returns the entry of the stream's key i. `first` is the entry of the
  /// warp's first key, plus a multiple of the number of entries. Keys that no
  /// token sees have an entry, too, so that loads need no branch, and overlap.
  __device__ uint32_t entryOf(uint32_t first, int i) const {
    const auto entries = uint32_t(shape.tokens.entries);
    const uint32_t next = first + offsetOf(i);
    return next < entries         ? next
           : entries < kRangeKeys ? next % entries
                                  : next - entries;
  }

  /// Adds the warp's keys [begin, begin + kWarpKeys); `first` as in entryOf().
  __device__ void addBatch(uint32_t begin, uint32_t first) {
    uint32_t entries[kBatchKeys];
    QLORA_UNROLL
    for (int i = 0; i < kBatchKeys; ++i)
      entries[i] = entryOf(first, i);
    LaneDims keys[kBatchKeys], values[kBatchKeys];
    QLORA_UNROLL
    for (int i = 0; i < kBatchKeys; ++i)
      values[i] = load(2, entries[i], at.firstDim);
    float scores[kCachedRows][kBatchKeys] = {};
    QLORA_ROLL
    for (int d = 0; d < (kIsWide ? 1 : shape.dim); d += kWidth) {
      if (!kIsWide && shape.dim > kWidth)
        loadQueries(d);
      QLORA_UNROLL
      for (int i = 0; i < kBatchKeys; ++i)
        keys[i] = load(1, entries[i], d);
      addProducts(keys, scores);
    }
    QLORA_UNROLL
    for (int row = 0; row < kCachedRows; ++row)
      if (row < run.rows)
        weigh(run.positionOf(row), begin, scores[row], maximum[row], sum[row],
              value[row]);
    addValues(begin, scores, values);
  }

  __device__ void addProducts(const LaneDims (&keys)[kBatchKeys],
                              float (&scores)[kCachedRows][kBatchKeys]) const {
    QLORA_UNROLL
    for (int row = 0; row < kCachedRows; ++row)
      QLORA_UNROLL
      for (int i = 0; i < kBatchKeys; ++i)
        QLORA_UNROLL
        for (int d = 0; d < kLaneDims; ++d)
          scores[row][i] =
              __fmaf_rn(query[row][d], keys[i][d], scores[row][i]);
  }

  /// Replaces the sums of products over the lane's dimensions by the weights of
  /// keys, 2^(score - maximum), and adds these to `sum`. Rescales the sums if
  /// the maximum grows. Keys that the row does not see get the weight 0. Maxima
  /// and weights are rounded as in AttentionBF16.cu.
  __device__ void weigh(uint32_t position, uint32_t begin,
                        float (&scores)[kBatchKeys], float &maximum, float &sum,
                        LaneDims &value) const {
    const uint32_t first = shape.firstKey(position);
    float most = cachedNone();
    QLORA_UNROLL
    for (int i = 0; i < kBatchKeys; ++i) {
      QLORA_UNROLL
      for (int offset = kLanes / 2; offset > 0; offset /= 2)
        scores[i] += __shfl_xor_sync(0xffffffffu, scores[i], offset);
      scores[i] *= shape.scale;
    }
    if (shape.cap != 0) {
      QLORA_UNROLL
      for (int i = 0; i < kBatchKeys; ++i)
        scores[i] = shape.cap * tanhf(scores[i]);
    }
    QLORA_UNROLL
    for (int i = 0; i < kBatchKeys; ++i) {
      const bool isSeen = begin + offsetOf(i) - first <= position - first;
      scores[i] = isSeen ? scores[i] : cachedNone();
      most = qlora_max(scores[i], most);
    }
    most = ceilf(most);
    if (most > maximum) {
      const float factor = qlora_exp2(maximum - most);
      maximum = most;
      sum = __fmul_rn(sum, factor);
      QLORA_UNROLL
      for (int d = 0; d < kLaneDims; ++d)
        value[d] = __fmul_rn(value[d], factor);
    }
    const float shift = maximum == cachedNone() ? 0.0f : maximum;
    QLORA_UNROLL
    for (int i = 0; i < kBatchKeys; ++i) {
      scores[i] = qlora_exp2(scores[i] - shift);
      sum = __fadd_rn(sum, scores[i]);
      if (shape.isHalf)
        scores[i] = qlora_round_bf16(scores[i]);
    }
  }

  /// Adds the products of weights and values. Rows that see all keys need no
  /// branches, so 16-bit values are widened once for all rows.
  __device__ void addValues(uint32_t begin,
                            const float (&weights)[kCachedRows][kBatchKeys],
                            const LaneDims (&values)[kBatchKeys]) {
    // The run's first token sees the earliest keys, the last token the latest.
    if (begin >= shape.firstKey(run.last) &&
        begin + kWarpKeys <= run.position + 1) {
      QLORA_UNROLL
      for (int row = 0; row < kCachedRows; ++row)
        QLORA_UNROLL
        for (int i = 0; i < kBatchKeys; ++i)
          QLORA_UNROLL
          for (int d = 0; d < kLaneDims; ++d)
            value[row][d] =
                __fmaf_rn(weights[row][i], values[i][d], value[row][d]);
      return;
    }
    QLORA_UNROLL
    for (int row = 0; row < kCachedRows; ++row) {
      const uint32_t position = run.positionOf(row);
      const uint32_t first = shape.firstKey(position);
      QLORA_UNROLL
      for (int i = 0; i < kBatchKeys; ++i)
        if (begin + offsetOf(i) - first <= position - first) {
          QLORA_UNROLL
          for (int d = 0; d < kLaneDims; ++d)
            value[row][d] =
                __fmaf_rn(weights[row][i], values[i][d], value[row][d]);
        }
    }
  }
};

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_CACHEDSTREAMS_CUH
