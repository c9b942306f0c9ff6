// SPDX-License-Identifier: MIT

// Common code of cache_rows and cached_attention: tokens of a launch, rows of a
// block, states of the softmax. Kernels.def lists the ops' buffers and
// constants. More constants of cached_attention follow (CudaCachedPlan): the
// number of ranges with separate blocks, or 0; the byte offset of the ranges'
// states in the workspace; whether q and out are bf16.
//
// A block of cached_attention computes up to kCachedRows rows: query heads of
// one key head, for one or more tokens. The keys are split by position:
//
//   range   kRangeKeys positions; the first is a multiple of kRangeKeys
//   stream  keys of a range that adjacent lanes process, kBatchKeys at a time;
//           each lane has kLaneDims dimensions of keys, values and results
//
// Each stream uses the online softmax (Milakov and Gimelshein, 2018). The
// streams of a range are joined in order, then the ranges. So the bits of a row
// depend only on its own position and keys, and not on whether one block
// processes all ranges or each range has a block ("flash decoding").

#ifndef QLORA_RUNTIME_KERNELS_CUDA_DEVICE_CACHES_CUH
#define QLORA_RUNTIME_KERNELS_CUDA_DEVICE_CACHES_CUH

#include "runtime/Kernels/Cuda/Device/Lanes.cuh"
#include "runtime/Kernels/Math/CacheInt8.h"

constexpr int kCachedThreads = 128;
constexpr int kCachedWarps = kCachedThreads / kQloraWarp;
/// CudaWorkspaces.h has kCachedRows, kRangeKeys and kMostDims, too.
constexpr int kCachedRows = 4;
constexpr int kRangeKeys = 128;
constexpr int kBatchKeys = 4;
constexpr int kLaneDims = 8;
constexpr int kMostDims = kQloraWarp * kLaneDims; ///< dimensions of a block

QLORA_DEVICE float cachedNone() { return qlora_from_bits(0xff800000u); }

/// Slots and positions of the tokens of a launch.
struct CacheTokens {
  const int32_t *slotOf, *positionOf, *segmentOf;
  int64_t slots, entries;

  /// Reads the buffers from index `first` on: slots, positions, segments.
  QLORA_DEVICE CacheTokens of(const qlora_cuda_args &args, int first) {
    return {qlora_at<int32_t>(args.buffers[first], 0),
            qlora_at<int32_t>(args.buffers[first + 1], 0),
            qlora_at<int32_t>(args.buffers[first + 2], 0), args.constants[2],
            args.constants[3]};
  }
  __device__ bool isPadding(int64_t token) const {
    return segmentOf[token] == 0 || slotOf[token] < 0 ||
           slotOf[token] >= slots || positionOf[token] < 0;
  }
  /// Returns the end of the run of tokens that begins at `first`: tokens before
  /// `end` with one slot and adjacent positions. `first` is not padding.
  __device__ int64_t endOfRun(int64_t first, int64_t end) const {
    int64_t next = first + 1;
    while (next < end && !isPadding(next) && slotOf[next] == slotOf[first] &&
           positionOf[next] - positionOf[next - 1] == 1)
      ++next;
    return next;
  }
};

/// The codes and the scales of an i8 cache (Math/CacheInt8.h).
struct Int8Cache {
  int8_t *codes;
  float *scales;

  QLORA_DEVICE Int8Cache of(void *cache, const CacheTokens &tokens,
                            int64_t columns) {
    auto *codes = static_cast<int8_t *>(cache);
    return {codes, reinterpret_cast<float *>(
                       codes + tokens.slots * tokens.entries * columns)};
  }
  /// Whether caches of a type have scales.
  template <typename Cache>
  static constexpr bool hasScales = sizeof(typename Cache::storage) == 1;
};

constexpr float kLog2E = 1.44269504f;

/// Extents and operands of a launch of cached_attention.
struct CachedShape {
  const qlora_cuda_args &args;
  CacheTokens tokens;
  int batch, length;
  int64_t ldq, ldo;
  int heads, keyHeads, dim;
  int span; ///< maximum number of positions that a token sees
  int ranges;
  /// Scores are exponents of 2: scale * product, or cap * tanh(scale *
  /// product).
  float scale, cap;
  bool isHalf; ///< whether q and out are bf16

  QLORA_DEVICE CachedShape of(const qlora_cuda_args &args) {
    const int64_t *c = args.constants;
    const auto scale = float(__builtin_bit_cast(double, c[10]));
    const auto cap = float(__builtin_bit_cast(double, c[11]));
    return {args,         CacheTokens::of(args, 3),
            int(c[0]),    int(c[1]),
            c[7],         c[8],
            int(c[4]),    int(c[5]),
            int(c[6]),    int(c[9] == 0 ? c[3] : c[9]),
            int(c[12]),   cap == 0 ? kLog2E * scale : scale / cap,
            kLog2E * cap, c[14] != 0};
  }
  /// Returns the elements of a row of a cache.
  __device__ int64_t keyWidth() const { return int64_t(keyHeads) * dim; }
  /// Returns the first position that a token at `position` sees.
  __device__ uint32_t firstKey(uint32_t position) const {
    return position < uint32_t(span) ? 0 : position - uint32_t(span) + 1;
  }
  /// Returns whether a token at `position` sees any of the keys [begin, begin +
  /// count).
  __device__ bool sees(uint32_t position, uint32_t begin, int count) const {
    return begin <= position && begin + uint32_t(count) > firstKey(position);
  }
  __device__ void store(int64_t token, int head, int d, float value) const {
    const int64_t i = token * ldo + int64_t(head) * dim + d;
    if (isHalf)
      qlora_store_bf16(args.buffers[6], i, value);
    else
      qlora_store_f32(args.buffers[6], i, value);
  }
};

/// The softmax of some keys, for one dimension of a row: the sum of 2^(score -
/// maximum), and the sum of these powers times the values.
struct CachedState {
  float maximum, sum, value;

  /// Returns the state before the first key: empty, or the head's sink.
  QLORA_DEVICE CachedState start(const CachedShape &shape, int head) {
    const void *sinks = shape.args.buffers[7];
    if (!sinks)
      return {cachedNone(), 0.0f, 0.0f};
    return {kLog2E * qlora_load_f32(sinks, head), 1.0f, 0.0f};
  }
  __device__ float result() const { return value / sum; }
};

/// Returns the softmax of the keys of both states.
QLORA_DEVICE CachedState joined(CachedState a, CachedState b) {
  const bool isOrdered = a.maximum >= b.maximum;
  const CachedState more = isOrdered ? a : b, less = isOrdered ? b : a;
  // The maxima of two empty states are minus infinity, with no difference.
  const float factor = less.maximum == more.maximum
                           ? 1.0f
                           : qlora_exp2(less.maximum - more.maximum);
  return {more.maximum, __fmaf_rn(less.sum, factor, more.sum),
          __fmaf_rn(less.value, factor, more.value)};
}

/// The rows of a block: `heads` query heads of the tokens [token, end).
struct CachedPlace {
  int64_t token, end;
  int keyHead, head, heads;
  int firstDim; ///< the block computes kMostDims dimensions
  int range;    ///< index among a run's ranges, if these have separate blocks

  /// Later tokens see more keys, so their blocks come first.
  QLORA_DEVICE CachedPlace of(const CachedShape &shape) {
    const int group = shape.heads / shape.keyHeads;
    const int tiles = (group + kCachedRows - 1) / kCachedRows;
    const int parts = (shape.dim + kMostDims - 1) / kMostDims;
    const int ranges = shape.ranges == 0 ? 1 : shape.ranges;
    const int tokens = group >= kCachedRows ? 1 : kCachedRows / group;
    const int blocks = (shape.length + tokens - 1) / tokens;
    CachedPlace place;
    int index = int(blockIdx.x);
    const int tile = index % tiles;
    index /= tiles;
    place.firstDim = index % parts * kMostDims;
    index /= parts;
    place.range = index % ranges;
    index /= ranges;
    place.keyHead = index % shape.keyHeads;
    index /= shape.keyHeads;
    place.head = place.keyHead * group + tile * kCachedRows;
    place.heads = group - tile * kCachedRows;
    place.heads = place.heads < kCachedRows ? place.heads : kCachedRows;
    const int64_t begin = int64_t(index % shape.batch) * shape.length;
    const int first = (blocks - 1 - index / shape.batch) * tokens;
    const int end = first + tokens;
    place.token = begin + first;
    place.end = begin + (end < shape.length ? end : shape.length);
    return place;
  }
};

/// The rows of tokens of a block that have one slot and adjacent positions.
struct CachedRun {
  int64_t token;
  int64_t entry; ///< the slot's first row in a cache [slots * entries]
  int rows, heads;
  uint32_t position;    ///< of the first token
  uint32_t first, last; ///< positions that any of the tokens sees

  QLORA_DEVICE CachedRun of(const CachedShape &shape, const CachedPlace &at,
                            int64_t token, int64_t end) {
    const auto position = uint32_t(shape.tokens.positionOf[token]);
    return {token,
            shape.tokens.slotOf[token] * shape.tokens.entries,
            int(end - token) * at.heads,
            at.heads,
            position,
            shape.firstKey(position),
            position + uint32_t(end - token) - 1};
  }
  /// Returns row / heads. A run with over two heads has one token.
  __device__ int tokenIndex(int row) const {
    return heads == 1 ? row : heads == 2 ? row / 2 : 0;
  }
  __device__ int64_t tokenOf(int row) const { return token + tokenIndex(row); }
  __device__ int headOf(int row) const { return row - tokenIndex(row) * heads; }
  __device__ uint32_t positionOf(int row) const {
    return position + uint32_t(tokenIndex(row));
  }
};

/// The states of a row's ranges in the workspace.
struct RangeStates {
  float *values, *states;
  int64_t dim;

  QLORA_DEVICE RangeStates of(const CachedShape &shape, int64_t token,
                              int head) {
    const int64_t first = (token * shape.heads + head) * shape.ranges;
    void *workspace = shape.args.buffers[8];
    auto *states = reinterpret_cast<float *>(
        qlora_at<uint8_t>(workspace, shape.args.constants[13]));
    return {qlora_at<float>(workspace, first * shape.dim), states + first * 2,
            shape.dim};
  }
  __device__ CachedState load(int64_t range, int64_t d) const {
    return {states[2 * range], states[2 * range + 1], values[range * dim + d]};
  }
  __device__ void store(int64_t range, int64_t d, CachedState state) const {
    values[range * dim + d] = state.value;
    if (d != 0)
      return;
    states[2 * range] = state.maximum;
    states[2 * range + 1] = state.sum;
  }
};

#endif // QLORA_RUNTIME_KERNELS_CUDA_DEVICE_CACHES_CUH
