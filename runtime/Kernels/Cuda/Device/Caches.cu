// SPDX-License-Identifier: MIT

// cache_rows and cached_attention (Caches.cuh).

#include "runtime/Kernels/Cuda/Device/Caches.cuh"

constexpr int kCopyThreads = 256;

/// cache_rows: one block per token.
template <typename X, typename Cache>
QLORA_DEVICE void cacheRows(const qlora_cuda_args &args) {
  const CacheTokens tokens = CacheTokens::of(args, 1);
  const int64_t token = blockIdx.x, columns = args.constants[1];
  if (tokens.isPadding(token))
    return;
  const int64_t row = tokens.slotOf[token] * tokens.entries +
                      tokens.positionOf[token] % tokens.entries;
  qlora_copy_row<X, Cache>(
      qlora_at<typename X::storage>(args.buffers[0], token * args.constants[5]),
      qlora_at<typename Cache::storage>(args.buffers[4], row * columns),
      columns);
}

#define QLORA_CACHE_ROWS(X, Cache)                                             \
  QLORA_CUDA_SYMBOL(kCopyThreads, qlora_cache_rows_##X##_##Cache,              \
                    cacheRows<qlora_##X, qlora_##Cache>)
QLORA_CACHE_ROWS(f32, f32)
QLORA_CACHE_ROWS(f32, bf16)
QLORA_CACHE_ROWS(f32, f16)
QLORA_CACHE_ROWS(bf16, f32)
QLORA_CACHE_ROWS(bf16, bf16)
QLORA_CACHE_ROWS(bf16, f16)

/// Returns the codes of four adjacent elements, the first one in the low byte.
QLORA_DEVICE uint32_t cacheCodes(const float (&x)[kCacheScaleBytes],
                                 float inverse) {
  uint32_t codes = 0;
  QLORA_UNROLL
  for (int i = 0; i < kCacheScaleBytes; ++i)
    codes |= uint32_t(qlora_cache_code(x[i], inverse) & 0xff) << (8 * i);
  return codes;
}

/// cache_rows to an i8 cache: one block per token, one warp per head. A lane
/// has four adjacent elements; the size of a head is a multiple of four.
template <typename X>
QLORA_DEVICE void cacheInt8Rows(const qlora_cuda_args &args) {
  const CacheTokens tokens = CacheTokens::of(args, 1);
  const int64_t token = blockIdx.x, columns = args.constants[1];
  const int64_t heads = args.constants[4], dim = columns / heads;
  if (tokens.isPadding(token))
    return;
  const int64_t row = tokens.slotOf[token] * tokens.entries +
                      tokens.positionOf[token] % tokens.entries;
  const int lane = int(threadIdx.x) % kQloraWarp;
  const Int8Cache cache = Int8Cache::of(args.buffers[4], tokens, columns);
  for (int64_t head = threadIdx.x / kQloraWarp; head < heads;
       head += kCopyThreads / kQloraWarp) {
    const auto *x = qlora_at<typename X::storage>(
        args.buffers[0], token * args.constants[5] + head * dim);
    constexpr int kFour = kCacheScaleBytes;
    float four[kFour], absmax = 0.0f;
    for (int i = lane * kFour; i < int(dim); i += kQloraWarp * kFour) {
      QLORA_UNROLL
      for (int j = 0; j < kFour; ++j)
        absmax = qlora_maximum(absmax, qlora_abs(X::load(x, i + j)));
    }
    absmax = qlora_warp_max(absmax);
    const float inverse = qlora_cache_inverse(absmax);
    auto *codes = reinterpret_cast<uint32_t *>(cache.codes + row * columns +
                                               head * dim);
    for (int i = lane * kFour; i < int(dim); i += kQloraWarp * kFour) {
      QLORA_UNROLL
      for (int j = 0; j < kFour; ++j)
        four[j] = X::load(x, i + j);
      codes[i / kFour] = cacheCodes(four, inverse);
    }
    if (lane == 0)
      cache.scales[row * heads + head] = qlora_cache_scale(absmax);
  }
}
QLORA_CUDA_SYMBOL(kCopyThreads, qlora_cache_rows_f32_i8,
                  cacheInt8Rows<qlora_f32>)
QLORA_CUDA_SYMBOL(kCopyThreads, qlora_cache_rows_bf16_i8,
                  cacheInt8Rows<qlora_bf16>)

// Streams of cached_attention -------------------------------------------------

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

// Blocks of cached_attention --------------------------------------------------

/// Maximum number of streams of a block; a stream has at least 8 lanes.
constexpr int kMostStreams = kCachedThreads / 8;

/// Sums of all streams of a block, and the states of the rows over all ranges
/// so far. An element of `total` is used by one thread (forEachElement).
struct CachedShared {
  alignas(16) float value[kCachedRows][kCachedThreads * kLaneDims];
  float maximum[kCachedRows][kMostStreams], sum[kCachedRows][kMostStreams];
  CachedState total[kCachedRows * kMostDims];
};

/// Calls use(element, row, d) for this thread's elements of the run's rows. d
/// is an index of the block's dimensions.
template <int kWidth, typename Use>
QLORA_DEVICE void forEachElement(const CachedRun &run, Use use) {
  QLORA_ROLL
  for (int element = int(threadIdx.x); element < run.rows * kWidth;
       element += kCachedThreads)
    use(element, element / kWidth, element % kWidth);
}

template <typename OfStream>
QLORA_DEVICE void shareSums(const OfStream &stream, CachedShared &shared) {
  QLORA_UNROLL
  for (int row = 0; row < kCachedRows; ++row) {
    qlora_store_lanes<qlora_f32>(shared.value[row], threadIdx.x * kLaneDims,
                                 stream.value[row]);
    if (stream.lane() == 0) {
      shared.maximum[row][stream.index()] = stream.maximum[row];
      shared.sum[row][stream.index()] = stream.sum[row];
    }
  }
}

/// Returns the sums of all streams, for one dimension of a row.
template <typename OfStream>
QLORA_DEVICE CachedState joinedStreams(const CachedShared &shared, int row,
                                       int d) {
  const auto at = [&](int stream) -> CachedState {
    return {shared.maximum[row][stream], shared.sum[row][stream],
            shared.value[row][stream * OfStream::kWidth + d]};
  };
  CachedState state = at(0);
  QLORA_UNROLL_2
  for (int stream = 1; stream < OfStream::kStreams; ++stream)
    state = joined(state, at(stream));
  return state;
}

/// Processes a range. Adds its sums to the states in shared memory; if ranges
/// have separate blocks, writes them to the workspace.
template <typename OfStream>
QLORA_DEVICE void attendRange(OfStream &stream, uint32_t range,
                              CachedShared &shared) {
  const CachedShape &shape = stream.shape;
  const CachedPlace &at = stream.at;
  const CachedRun &run = stream.run;
  stream.clear();
  stream.addRange(range);
  shareSums(stream, shared);
  __syncthreads();
  forEachElement<OfStream::kWidth>(run, [&](int element, int row, int d) {
    const uint32_t position = run.positionOf(row);
    d += at.firstDim;
    if (d >= shape.dim || !shape.sees(position, range * kRangeKeys, kRangeKeys))
      return;
    const CachedState state =
        joinedStreams<OfStream>(shared, row, d - at.firstDim);
    if (shape.ranges == 0)
      shared.total[element] = joined(shared.total[element], state);
    else
      RangeStates::of(shape, run.tokenOf(row), at.head + run.headOf(row))
          .store(range - shape.firstKey(position) / kRangeKeys, d, state);
  });
  __syncthreads();
}

template <typename OfStream>
QLORA_DEVICE void attendRun(OfStream &stream, CachedShared &shared) {
  constexpr int kWidth = OfStream::kWidth;
  const CachedShape &shape = stream.shape;
  const CachedPlace &at = stream.at;
  const CachedRun &run = stream.run;
  stream.loadQueries(0);
  forEachElement<kWidth>(run, [&](int element, int row, int) {
    shared.total[element] =
        CachedState::start(shape, at.head + run.headOf(row));
  });
  uint32_t begin = run.first / kRangeKeys, end = run.last / kRangeKeys + 1;
  if (shape.ranges != 0) {
    begin += uint32_t(at.range);
    end = begin < end ? begin + 1 : begin;
  }
  QLORA_ROLL
  for (uint32_t range = begin; range < end; ++range)
    attendRange(stream, range, shared);
  if (shape.ranges != 0)
    return;
  forEachElement<kWidth>(run, [&](int element, int row, int d) {
    if (at.firstDim + d < shape.dim)
      shape.store(run.tokenOf(row), at.head + run.headOf(row), at.firstDim + d,
                  shared.total[element].result());
  });
}

/// Clears the results of a padding token, unless joinRanges does.
QLORA_DEVICE void clearToken(const CachedShape &shape, const CachedPlace &at,
                             int64_t token) {
  if (shape.ranges != 0)
    return;
  for (int i = int(threadIdx.x); i < at.heads * kMostDims; i += kCachedThreads)
    if (at.firstDim + i % kMostDims < shape.dim)
      shape.store(token, at.head + i / kMostDims, at.firstDim + i % kMostDims,
                  0.0f);
}

template <typename Cache, int kLanes, bool kIsWide>
QLORA_DEVICE void cachedAttention(const qlora_cuda_args &args,
                                  CachedShared &shared) {
  const CachedShape shape = CachedShape::of(args);
  const CachedPlace at = CachedPlace::of(shape);
  QLORA_ROLL
  for (int64_t token = at.token, next; token < at.end; token = next) {
    next = token + 1;
    if (shape.tokens.isPadding(token)) {
      clearToken(shape, at, token);
      continue;
    }
    next = shape.tokens.endOfRun(token, at.end);
    const CachedRun run = CachedRun::of(shape, at, token, next);
    Stream<Cache, kLanes, kIsWide> stream = {shape, at, run};
    attendRun(stream, shared);
  }
}

#define QLORA_CACHED_ATTENTION(Cache, Suffix, Lanes, IsWide)                   \
  QLORA_CUDA_KERNEL(kCachedThreads, IsWide ? 3 : 1)                            \
  qlora_cached_attention_##Cache##_##Suffix(                                   \
      const __grid_constant__ qlora_cuda_args args) {                          \
    __shared__ CachedShared shared;                                            \
    cachedAttention<qlora_##Cache, Lanes, IsWide>(args, shared);               \
  }
/// Three blocks of a multiprocessor load enough keys at a time. Variants for
/// any operands use all registers.
#define QLORA_CACHED_ATTENTIONS(Cache)                                         \
  QLORA_CACHED_ATTENTION(Cache, 64, 8, true)                                   \
  QLORA_CACHED_ATTENTION(Cache, 128, 16, true)                                 \
  QLORA_CACHED_ATTENTION(Cache, 256, 32, true)                                 \
  QLORA_CACHED_ATTENTION(Cache, any, 32, false)
QLORA_CACHED_ATTENTIONS(f32)
QLORA_CACHED_ATTENTIONS(bf16)
QLORA_CACHED_ATTENTIONS(f16)
QLORA_CACHED_ATTENTIONS(i8)

/// Joins the ranges of a query head of a token; one block for each.
QLORA_DEVICE void joinRanges(const qlora_cuda_args &args) {
  const CachedShape shape = CachedShape::of(args);
  const int64_t token = blockIdx.x / unsigned(shape.heads);
  const int head = int(blockIdx.x % unsigned(shape.heads));
  const bool isPadding = shape.tokens.isPadding(token);
  const uint32_t last =
      isPadding ? 0 : uint32_t(shape.tokens.positionOf[token]);
  const uint32_t ranges =
      last / kRangeKeys - shape.firstKey(last) / kRangeKeys + 1;
  const RangeStates states = RangeStates::of(shape, token, head);
  for (int d = int(threadIdx.x); d < shape.dim; d += kCachedThreads) {
    CachedState state = CachedState::start(shape, head);
    for (uint32_t range = 0; !isPadding && range < ranges; ++range)
      state = joined(state, states.load(range, d));
    shape.store(token, head, d, isPadding ? 0.0f : state.result());
  }
}
QLORA_CUDA_SYMBOL(kCachedThreads, qlora_cached_attention_join, joinRanges)
