// SPDX-License-Identifier: MIT

// cache_rows and cached_attention (Caches.cuh).

#include "runtime/Kernels/Cuda/Device/CachedStreams.cuh"

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
