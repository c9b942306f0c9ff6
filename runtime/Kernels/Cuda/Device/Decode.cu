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
// Buffers: w, out. Constants: elements; the block; its log2, or -1 if it is no
// power of two; double_quant; byte offsets of scales, nestedAbsmax, nestedMap,
// codeBook, correction and zeros; 2^64 / block, rounded up.

#include "runtime/Kernels/Cuda/Device/Lanes.cuh"

constexpr int kDecodeThreads = 256;
constexpr int kDecodeTile = 1024;
/// Number of tiles per warp. Matmul.cpp computes the grid from it.
constexpr int kDecodeTiles = 2;
constexpr int kDecodeOfWarp = kDecodeTiles * kDecodeTile;
/// Number of consecutive elements of a tile whose scale one lane loads.
constexpr int kDecodeRun = kDecodeTile / kQloraWarp;

/// Coding of a format: bits per code, and whether blocks have zero points.
template <int Bits, bool HasZeros> struct DecodeCoding {
  static constexpr int kBits = Bits;
  static constexpr bool kHasZeros = HasZeros;
};

/// Lookup tables of a thread block. A 4-bit code book is in 16 banks, so lanes
/// never conflict. The book's address ends in a zero byte, for lookUp().
template <typename Coding> struct alignas(256) DecodeTables {
  float codeBook[1 << Coding::kBits];
  float nestedMap[256];
};

struct DecodeWeight {
  const uint8_t *packed, *scales, *zeros;
  const float *nestedAbsmax;
  float correction;
  int64_t count, block;
  uint64_t reciprocal;
  int shift; ///< log2 of the block, or -1
  bool isDouble;

  QLORA_DEVICE DecodeWeight of(const qlora_cuda_args &args) {
    const uint8_t *base = qlora_at<uint8_t>(args.buffers[0], 0);
    const int64_t *c = args.constants;
    return {base,
            base + c[4],
            base + c[9],
            reinterpret_cast<const float *>(base + c[5]),
            *reinterpret_cast<const float *>(base + c[8]),
            c[0],
            c[1],
            uint64_t(c[10]),
            int(c[2]),
            c[3] != 0};
  }
};

template <typename Coding>
QLORA_DEVICE void fillTables(const qlora_cuda_args &args,
                             DecodeTables<Coding> &tables) {
  const uint8_t *base = qlora_at<uint8_t>(args.buffers[0], 0);
  const int thread = int(threadIdx.x);
  if (thread < 1 << Coding::kBits)
    tables.codeBook[thread] = qlora_load_f32(base + args.constants[7], thread);
  if (args.constants[3] != 0)
    tables.nestedMap[thread] = qlora_load_f32(base + args.constants[6], thread);
  __syncthreads();
}

/// Converts values of the code book: subtracts the zero point, if the format
/// has zero points, then multiplies by `absmax`. Only the
/// specialization has a zero point, so other formats need no register for it.
template <typename Coding, bool = Coding::kHasZeros> struct DecodeFactors {
  float absmax;

  __device__ float operator()(float value) const {
    return __fmul_rn(value, absmax);
  }
  /// Returns the factors of another lane of the warp.
  __device__ DecodeFactors ofLane(int lane) const {
    return {__shfl_sync(0xffffffffu, absmax, lane)};
  }
};

template <typename Coding> struct DecodeFactors<Coding, true> {
  float absmax, zero;

  __device__ float operator()(float value) const {
    return __fmul_rn(__fsub_rn(value, zero), absmax);
  }
  __device__ DecodeFactors ofLane(int lane) const {
    return {__shfl_sync(0xffffffffu, absmax, lane),
            __shfl_sync(0xffffffffu, zero, lane)};
  }
};

/// A block's scale as stored, not yet decoded.
struct DecodeScale {
  float factor; ///< nestedAbsmax of the scale's run, or the scale itself
  int code;

  QLORA_DEVICE DecodeScale load(const DecodeWeight &w, int64_t index) {
    if (w.isDouble)
      return {w.nestedAbsmax[index / 256], w.scales[index]};
    return {qlora_load_f32(w.scales, index), 0};
  }
  template <typename Coding>
  __device__ float absmax(const DecodeWeight &w,
                          const DecodeTables<Coding> &tables) const {
    return w.isDouble ? __fadd_rn(__fmul_rn(tables.nestedMap[code], factor),
                                  w.correction)
                      : __fmul_rn(factor, w.correction);
  }
};

/// Returns the code book value at the byte offset in byte i of `offsets`. The
/// book's address ends in a zero byte, which this offset replaces.
template <typename Coding>
QLORA_DEVICE float lookUp(const DecodeTables<Coding> &tables, uint32_t offsets,
                          int i) {
#ifdef __NVCC__
  const uint32_t book = uint32_t(__cvta_generic_to_shared(tables.codeBook));
  float number;
  asm volatile("ld.shared.f32 %0, [%1];"
               : "=f"(number)
               : "r"(__byte_perm(offsets, book, 0x7650u + unsigned(i))));
  return number;
#else
  return tables.codeBook[(offsets >> (8 * i) & 0xffu) / sizeof(float)];
#endif
}

/// Decodes a group of 4-bit codes. A byte's high half is its first code.
template <bool kHasZeros, int kCount>
QLORA_DEVICE void
decodeGroup(const DecodeTables<DecodeCoding<4, kHasZeros>> &tables,
            uint32_t packed,
            const DecodeFactors<DecodeCoding<4, kHasZeros>> &factors,
            float (&values)[kCount]) {
  const uint32_t high = packed >> 2 & 0x3c3c3c3cu;
  const uint32_t low = packed << 2 & 0x3c3c3c3cu;
  QLORA_UNROLL
  for (int i = 0; i < kCount; ++i)
    values[i] = factors(lookUp(tables, i % 2 == 0 ? high : low, i / 2));
}

/// Decodes a group of 8-bit codes. A code is an index into the code book.
template <bool kHasZeros, int kCount>
QLORA_DEVICE void
decodeGroup(const DecodeTables<DecodeCoding<8, kHasZeros>> &tables,
            uint64_t packed,
            const DecodeFactors<DecodeCoding<8, kHasZeros>> &factors,
            float (&values)[kCount]) {
  QLORA_UNROLL
  for (int i = 0; i < kCount; ++i)
    values[i] = factors(tables.codeBook[packed >> (8 * i) & 0xffu]);
}

/// Number of values in a group, the 16 bytes that a lane stores at once.
template <typename Out>
constexpr int kDecodeGroup = 16 / int(sizeof(typename Out::storage));

/// Integer type that holds the codes of a group.
template <int kBytes> struct DecodePacked;
template <> struct DecodePacked<2> { using type = uint16_t; };
template <> struct DecodePacked<4> { using type = uint32_t; };
template <> struct DecodePacked<8> { using type = uint64_t; };

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

/// Returns the index of an element's scale, element / block. Multiplies by a
/// reciprocal, because a 64-bit division would spill registers. The result is
/// exact while element * block < 2^64.
QLORA_DEVICE int64_t decodeScaleIndex(const DecodeWeight &w, int64_t element) {
  return w.shift >= 0 ? element >> w.shift
                      : int64_t(__umul64hi(uint64_t(element), w.reciprocal));
}

template <typename Coding>
QLORA_DEVICE DecodeFactors<Coding>
decodeFactorsOf(const DecodeWeight &w, const DecodeTables<Coding> &tables,
                int64_t i) {
  const int64_t index = decodeScaleIndex(w, i);
  const float absmax = DecodeScale::load(w, index).absmax(w, tables);
  if constexpr (Coding::kHasZeros)
    return {absmax, float(w.zeros[index])};
  else
    return {absmax};
}

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
  const DecodeWeight w = DecodeWeight::of(args);
  const int lane = int(threadIdx.x) % kQloraWarp;
  const int64_t first =
      (int64_t(blockIdx.x) * (kDecodeThreads / kQloraWarp) +
       threadIdx.x / kQloraWarp) * kDecodeOfWarp;
  const int64_t end = first + kDecodeOfWarp;
  auto *out = qlora_at<typename Out::storage>(args.buffers[1], 0);
  // With zero points, tiles would spill registers, so decode group by group.
  if constexpr (Coding::kHasZeros) {
    fillTables(args, tables);
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
    fillTables(args, tables);
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
    fillTables(args, tables);                                                  \
    adaptedNorm(args, StoredNumbers<Coding>{DecodeWeight::of(args), tables});  \
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
