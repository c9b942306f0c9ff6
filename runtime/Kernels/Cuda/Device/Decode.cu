// SPDX-License-Identifier: MIT

// decode of 4-bit and 8-bit weights. Results are bit-identical to
// StoredTensor::element, because each operation is rounded separately.
//
// If the format's block is a power of two of at least 32, a warp decodes tiles
// of 1024 elements, in groups that fill 16 bytes of out. Lane l decodes groups
// l, l + 32, ..., so adjacent lanes access adjacent memory. Lane l also loads
// the scale of elements [32 l, 32 l + 32); a shuffle gives it to other lanes.
// Bytes and scales of all tiles are requested before the tables are loaded.
//
// Buffers: w, out. Constants: those of Decode.cuh.

#include "runtime/Kernels/Cuda/Device/Decode.cuh"
#include "runtime/Kernels/Cuda/Device/Lanes.cuh"

constexpr int kDecodeThreads = 256;
constexpr int kDecodeTile = 1024;
/// Number of tiles per warp. Matmul.cpp computes the grid from it.
constexpr int kDecodeTiles = 2;
constexpr int kDecodeOfWarp = kDecodeTiles * kDecodeTile;
/// Number of consecutive elements of a tile whose scale one lane loads.
constexpr int kDecodeRun = kDecodeTile / kQloraWarp;

/// Number of values in a group, the 16 bytes that a lane stores at once.
template <typename Out>
constexpr int kDecodeGroup = 16 / int(sizeof(typename Out::storage));

/// The groups of a full tile that one lane decodes.
template <typename Coding, typename Out> struct DecodeTile {
  static constexpr int kCount = kDecodeGroup<Out>;
  static constexpr int kGroups = kDecodeRun / kCount;
  using Packed = typename DecodePacked<kCount * Coding::kBits / 8>::type;
  Packed packed[kGroups];
  DecodeScale scale;

  __device__ void load(const DecodeWeight &w, int64_t first, int lane) {
    const Packed *from =
        reinterpret_cast<const Packed *>(w.packed + first * Coding::kBits / 8) +
        lane;
    QLORA_UNROLL
    for (int group = 0; group < kGroups; ++group)
      packed[group] = from[group * kQloraWarp];
    scale = DecodeScale::load(w, (first + lane * kDecodeRun) >> w.shift);
  }

  __device__ void store(const DecodeWeight &w,
                        const DecodeTables<Coding> &tables,
                        typename Out::storage *out, int lane) const {
    const DecodeFactors<Coding> factors{scale.absmax(w, tables)};
    typename Out::storage *to = out + lane * kCount;
    QLORA_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      qlora_lanes<kCount> numbers;
      decodeGroup(tables, packed[group],
                  factors.ofLane(group * kCount + lane * kCount / kDecodeRun),
                  numbers.value);
      qlora_store_lanes<Out>(to, group * kQloraWarp * kCount, numbers);
    }
  }
};

template <typename Coding>
QLORA_DEVICE float decodeOne(const DecodeWeight &w,
                             const DecodeTables<Coding> &tables, int64_t i,
                             const DecodeFactors<Coding> &factors) {
  const uint32_t byte = w.packed[i * Coding::kBits / 8];
  const uint32_t code = Coding::kBits == 8 ? byte
                        : i % 2 == 0       ? byte >> 4
                                           : byte & 15;
  return factors(tables.codeBook[code]);
}

/// Decodes the groups of elements [first, end) that belong to `lane`. `first`
/// must start a group. Decodes element by element if the group is partial or
/// cannot be stored as 16 aligned bytes.
template <typename Coding, typename Out>
QLORA_DEVICE void
decodeGroups(const DecodeWeight &w, const DecodeTables<Coding> &tables,
             typename Out::storage *out, int64_t first, int64_t end, int lane) {
  constexpr int kCount = kDecodeGroup<Out>, kBits = Coding::kBits;
  using Packed = typename DecodePacked<kCount * kBits / 8>::type;
  // In 8-bit formats and formats with zero points, a block may be a row. Such a
  // block may start inside a group.
  constexpr bool kRowsAreBlocks = kBits == 8 || Coding::kHasZeros;
  const bool isAligned =
      reinterpret_cast<uintptr_t>(out) % 16 == 0 && w.block % 16 == 0;
  QLORA_ROLL
  for (int64_t group = first + lane * kCount; group < end;
       group += kQloraWarp * kCount) {
    const DecodeFactors<Coding> factors = decodeFactorsOf(w, tables, group);
    if (isAligned && group + kCount <= end) {
      qlora_lanes<kCount> numbers;
      decodeGroup(
          tables,
          *reinterpret_cast<const Packed *>(w.packed + group * kBits / 8),
          factors, numbers.value);
      qlora_store_lanes<Out>(out, group, numbers);
      continue;
    }
    QLORA_ROLL
    for (int64_t i = group; i < end && i < group + kCount; ++i)
      Out::store(out, i,
                 decodeOne(w, tables, i,
                           kRowsAreBlocks ? decodeFactorsOf(w, tables, i)
                                          : factors));
  }
}

template <typename Coding, typename Out>
QLORA_DEVICE void decode(const qlora_cuda_args &args,
                         DecodeTables<Coding> &tables) {
  const DecodeWeight w = DecodeWeight::of(args, 0);
  const int lane = int(threadIdx.x) % kQloraWarp;
  const int64_t first =
      (int64_t(blockIdx.x) * (kDecodeThreads / kQloraWarp) +
       threadIdx.x / kQloraWarp) * kDecodeOfWarp;
  const int64_t end = first + kDecodeOfWarp;
  auto *out = qlora_at<typename Out::storage>(args.buffers[1], 0);
  // With zero points, tiles would spill registers, so decode group by group.
  if constexpr (Coding::kHasZeros) {
    fillTables(args, 0, tables);
    decodeGroups<Coding, Out>(w, tables, out, first,
                              end < w.count ? end : w.count, lane);
  } else {
    const bool isWhole = __all_sync(
        0xffffffffu, end <= w.count && w.shift >= 0 && w.block >= kDecodeRun &&
                         reinterpret_cast<uintptr_t>(out) % 16 == 0);
    DecodeTile<Coding, Out> tiles[kDecodeTiles];
    QLORA_UNROLL
    for (int tile = 0; isWhole && tile < kDecodeTiles; ++tile)
      tiles[tile].load(w, first + tile * kDecodeTile, lane);
    fillTables(args, 0, tables);
    if (!isWhole)
      return decodeGroups<Coding, Out>(w, tables, out, first,
                                       end < w.count ? end : w.count, lane);
    QLORA_UNROLL
    for (int tile = 0; tile < kDecodeTiles; ++tile)
      tiles[tile].store(w, tables, out + first + tile * kDecodeTile, lane);
  }
}

#define QLORA_DECODE(Name, Out, ...)                                           \
  QLORA_CUDA_KERNEL(kDecodeThreads)                                            \
  qlora_decode_##Name##_##Out(const __grid_constant__ qlora_cuda_args args) {  \
    using Coding = DecodeCoding<__VA_ARGS__>;                                  \
    __shared__ DecodeTables<Coding> tables;                                    \
    decode<Coding, qlora_##Out>(args, tables);                                 \
  }
#define QLORA_DECODES(Name, ...)                                               \
  QLORA_DECODE(Name, f32, __VA_ARGS__)                                         \
  QLORA_DECODE(Name, bf16, __VA_ARGS__)                                        \
  QLORA_DECODE(Name, f16, __VA_ARGS__)
QLORA_DECODES(4bit, 4, false)
QLORA_DECODES(8bit, 8, false)
QLORA_DECODES(4bit_zeros, 4, true)
QLORA_DECODES(8bit_zeros, 8, true)

// adapted_norm: one block per output. The constants are those of decode, then:
// in, rank, the strides of w between outputs and between inputs (in elements),
// and the bits of the scale. Buffers: w, a, b, out.

template <typename Coding> struct StoredNumbers {
  const DecodeWeight w;
  const DecodeTables<Coding> &tables;

  __device__ float operator()(int64_t i) const {
    return decodeOne(w, tables, i, decodeFactorsOf(w, tables, i));
  }
};

template <typename Type> struct PlainNumbers {
  const void *w;
  __device__ float operator()(int64_t i) const { return Type::load(w, i); }
};

template <typename Numbers>
QLORA_DEVICE void adaptedNorm(const qlora_cuda_args &args,
                              const Numbers &numbers) {
  const int64_t *c = args.constants + 11;
  const int64_t in = c[0], rank = c[1], out = blockIdx.x;
  const float scale = qlora_from_bits(uint32_t(c[4]));
  double sum = 0;
  for (int64_t k = threadIdx.x; k < in; k += kDecodeThreads) {
    float value = numbers(out * c[2] + k * c[3]);
    for (int64_t j = 0; j < rank; ++j) {
      const float b =
          __fmul_rn(scale, qlora_load_f32(args.buffers[2], out * rank + j));
      value = __fadd_rn(
          value, __fmul_rn(b, qlora_load_f32(args.buffers[1], j * in + k)));
    }
    sum = __dadd_rn(sum, __dmul_rn(double(value), double(value)));
  }
  sum = qlora_block_sum(sum);
  if (threadIdx.x == 0)
    *qlora_at<float>(args.buffers[3], out) = float(sqrt(sum));
}

#define QLORA_ADAPTED_NORM_STORED(Name, ...)                                   \
  QLORA_CUDA_KERNEL(kDecodeThreads)                                            \
  qlora_adapted_norm_##Name(const __grid_constant__ qlora_cuda_args args) {    \
    using Coding = DecodeCoding<__VA_ARGS__>;                                  \
    __shared__ DecodeTables<Coding> tables;                                    \
    fillTables(args, 0, tables);                                               \
    const DecodeWeight w = DecodeWeight::of(args, 0);                          \
    adaptedNorm(args, StoredNumbers<Coding>{w, tables});                       \
  }
QLORA_ADAPTED_NORM_STORED(4bit, 4, false)
QLORA_ADAPTED_NORM_STORED(8bit, 8, false)
QLORA_ADAPTED_NORM_STORED(4bit_zeros, 4, true)
QLORA_ADAPTED_NORM_STORED(8bit_zeros, 8, true)

#define QLORA_ADAPTED_NORM(Type)                                               \
  QLORA_CUDA_KERNEL(kDecodeThreads)                                            \
  qlora_adapted_norm_##Type(const __grid_constant__ qlora_cuda_args args) {    \
    adaptedNorm(args, PlainNumbers<qlora_##Type>{args.buffers[0]});            \
  }
QLORA_ADAPTED_NORM(f32)
QLORA_ADAPTED_NORM(bf16)
QLORA_ADAPTED_NORM(f16)
