// SPDX-License-Identifier: MIT

// panel_matmul of few rows of a on tensor cores: c = a . W^T with W in 4 or 8
// bits, which is read once and decoded in registers.
//
// A block computes kOutputs rows of W, for all rows of a. Its warps take turns
// of kTurn elements of these rows. In an m16n8k16, W is the first operand, and
// eight rows of a are the second. Both have the same elements of a row in a
// lane, so their order does not matter: a lane has kRun adjacent elements of
// two rows of W, and of a row of a for each tile of eight. A run is within one
// quantization block. The codes of the next turn are requested before those of
// this turn are decoded. The warps' sums are added in order. So the bits of a
// row of c depend neither on other rows nor on their number.
//
// Buffers: those of panel_matmul. Constants: those of Decode.cuh; m, rows,
// columns, lda, ldc; the bits of alpha and beta; whether c is bf16.

#include "runtime/Kernels/Cuda/Device/Decode.cuh"
#include "runtime/Kernels/Cuda/Device/TensorCore.cuh"

/// CudaWorkspaces.h has kOutputs and kRun, too.
constexpr int kFewThreads = 256;
constexpr int kFewWarps = kFewThreads / kQloraWarp;
constexpr int kOutputs = 16, kRun = 32;
constexpr int kTurn = 4 * kRun;
constexpr int kGroup = 8; ///< elements that are decoded together
constexpr int kGroups = kRun / kGroup;

struct FewRowsShape {
  const qlora_cuda_args &args;
  int m;
  int64_t rows, columns, lda, ldc;
  float alpha, beta;
  bool isHalf;

  QLORA_DEVICE FewRowsShape of(const qlora_cuda_args &args) {
    const int64_t *c = args.constants + kDecodeConstants;
    return {args,
            int(c[0]),
            c[1],
            c[2],
            c[3],
            c[4],
            float(__builtin_bit_cast(double, c[5])),
            float(__builtin_bit_cast(double, c[6])),
            c[7] != 0};
  }
  __device__ float load(int64_t i) const {
    return isHalf ? qlora_load_bf16(args.buffers[2], i)
                  : qlora_load_f32(args.buffers[2], i);
  }
  __device__ void store(int64_t i, float value) const {
    if (isHalf)
      qlora_store_bf16(args.buffers[2], i, value);
    else
      qlora_store_f32(args.buffers[2], i, value);
  }
};

/// Loads 16 bytes; `isAligned`: from an address that is aligned to 16 bytes,
/// otherwise to a `Part`.
template <typename Part>
QLORA_DEVICE qlora_words loadWords(const void *from, bool isAligned) {
  if (isAligned)
    return *static_cast<const qlora_words *>(from);
  constexpr int kParts = 4 / int(sizeof(Part));
  qlora_words words = {};
  QLORA_UNROLL
  for (int i = 0; i < 4 * kParts; ++i)
    words.word[i / kParts] |= uint32_t(static_cast<const Part *>(from)[i])
                              << (i % kParts * 8 * int(sizeof(Part)));
  return words;
}

/// A lane's run of codes of a row of W, and their scale as stored.
template <typename Coding> struct CodesOfRun {
  static constexpr int kWords = kRun * Coding::kBits / 8 / 16;
  qlora_words words[kWords];
  int64_t first;
  bool exists;

  /// Loads the elements [k, k + kRun) of row `output`, if they exist.
  __device__ void load(const DecodeWeight &w, const FewRowsShape &shape,
                       int64_t output, int64_t k, bool isAligned) {
    exists = output < shape.rows && k < shape.columns;
    first = exists ? output * shape.columns + k : 0;
    const uint8_t *from = w.packed + first * Coding::kBits / 8;
    QLORA_UNROLL
    for (int i = 0; i < kWords; ++i)
      words[i] = exists ? loadWords<uint32_t>(from + 16 * i, isAligned)
                        : qlora_words{};
  }

  /// Decodes the elements of a group to four words, each of two bf16.
  __device__ void decode(const DecodeTables<Coding> &tables,
                         const DecodeFactors<Coding> &factors, int group,
                         uint32_t (&pairs)[kGroup / 2]) const {
    float values[kGroup];
    if constexpr (Coding::kBits == 4) {
      decodeGroup(tables, words[0].word[group], factors, values);
    } else {
      const qlora_words &part = words[group / 2];
      const uint64_t low = part.word[group % 2 * 2];
      const uint64_t high = part.word[group % 2 * 2 + 1];
      decodeGroup(tables, high << 32 | low, factors, values);
    }
    QLORA_UNROLL
    for (int i = 0; i < kGroup / 2; ++i) {
      const uint32_t pair = qlora_round_pair(values[2 * i], values[2 * i + 1]);
      pairs[i] = exists ? pair : 0;
    }
  }
};

/// One lane's part of a block's products. kTiles: tiles of eight rows of a.
template <typename Coding, int kTiles> struct FewRows {
  const FewRowsShape &shape;
  const DecodeWeight &w;
  const DecodeTables<Coding> &tables;
  bool isAligned, isRowAligned;
  qlora_sums sums[kTiles];

  __device__ int lane() const { return int(threadIdx.x) % kQloraWarp; }

  /// Returns a run of row `tile * 8 + lane / 4` of a; zeros if there is none.
  __device__ void loadRow(int tile, int64_t k,
                          qlora_words (&words)[kGroups]) const {
    const int row = tile * 8 + lane() / 4;
    const bool exists = row < shape.m && k < shape.columns;
    const uint16_t *from = qlora_at<uint16_t>(
        shape.args.buffers[0], exists ? row * shape.lda + k : 0);
    QLORA_UNROLL
    for (int i = 0; i < kGroups; ++i)
      words[i] = exists ? loadWords<uint16_t>(from + i * kGroup, isRowAligned)
                        : qlora_words{};
  }

  /// Adds the products of the runs at element k.
  __device__ void add(const CodesOfRun<Coding> (&codes)[2], int64_t k) {
    qlora_words rows[kTiles][kGroups];
    QLORA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile)
      loadRow(tile, k, rows[tile]);
    const DecodeFactors<Coding> factors[] = {
        decodeFactorsOf(w, tables, codes[0].first),
        decodeFactorsOf(w, tables, codes[1].first)};
    QLORA_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      uint32_t pairs[2][kGroup / 2];
      QLORA_UNROLL
      for (int half = 0; half < 2; ++half)
        codes[half].decode(tables, factors[half], group, pairs[half]);
      QLORA_UNROLL
      for (int i = 0; i < kGroup / 2; i += 2) {
        const qlora_words weights = {{pairs[0][i], pairs[1][i],
                                      pairs[0][i + 1], pairs[1][i + 1]}};
        QLORA_UNROLL
        for (int tile = 0; tile < kTiles; ++tile)
          qlora_multiply(sums[tile], weights, rows[tile][group].word[i],
                         rows[tile][group].word[i + 1]);
      }
    }
  }

  __device__ void run(int64_t firstOutput) {
    const int64_t output = firstOutput + lane() / 4;
    const int64_t begin =
        int64_t(threadIdx.x / kQloraWarp) * kTurn + lane() % 4 * kRun;
    CodesOfRun<Coding> codes[2], next[2];
    const auto load = [&](CodesOfRun<Coding> (&to)[2], int64_t k) {
      QLORA_UNROLL
      for (int half = 0; half < 2; ++half)
        to[half].load(w, shape, output + 8 * half, k, isAligned);
    };
    load(codes, begin);
    // All lanes of a warp take as many turns.
    const int64_t last = shape.columns + begin % kTurn;
    for (int64_t k = begin; k < last; k += kFewWarps * kTurn) {
      load(next, k + kFewWarps * kTurn);
      add(codes, k);
      QLORA_UNROLL
      for (int half = 0; half < 2; ++half)
        codes[half] = next[half];
    }
  }
};

/// Sums of a block's warps.
template <int kTiles> struct FewRowsSums {
  float value[kFewWarps][8 * kTiles][kOutputs];
};

template <typename Coding, int kTiles>
QLORA_DEVICE void fewRows(const qlora_cuda_args &args,
                          DecodeTables<Coding> &tables,
                          FewRowsSums<kTiles> &sums) {
  const FewRowsShape shape = FewRowsShape::of(args);
  const DecodeWeight w = DecodeWeight::of(args, 1);
  fillTables(args, 1, tables);
  const auto isAligned = [](const void *p) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
  };
  FewRows<Coding, kTiles> own = {
      shape, w, tables, isAligned(w.packed), isAligned(args.buffers[0]), {}};
  const int64_t first = int64_t(blockIdx.x) * kOutputs;
  own.run(first);
  const int lane = own.lane(), warp = int(threadIdx.x) / kQloraWarp;
  QLORA_UNROLL
  for (int tile = 0; tile < kTiles; ++tile)
    QLORA_UNROLL
    for (int i = 0; i < 4; ++i)
      sums.value[warp][tile * 8 + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] =
          own.sums[tile].value[i];
  __syncthreads();
  for (int i = int(threadIdx.x); i < shape.m * kOutputs; i += kFewThreads) {
    const int row = i / kOutputs, output = i % kOutputs;
    if (first + output >= shape.rows)
      continue;
    float sum = 0;
    QLORA_UNROLL
    for (int other = 0; other < kFewWarps; ++other)
      sum = __fadd_rn(sum, sums.value[other][row][output]);
    const int64_t at = row * shape.ldc + first + output;
    const float before = shape.beta == 0 ? 0 : shape.beta * shape.load(at);
    shape.store(at, shape.alpha * sum + before);
  }
}

#define QLORA_FEW_ROWS(Name, Tiles, ...)                                       \
  QLORA_CUDA_KERNEL(kFewThreads, 2)                                            \
  qlora_few_rows_##Name##_##Tiles(                                             \
      const __grid_constant__ qlora_cuda_args args) {                          \
    using Coding = DecodeCoding<__VA_ARGS__>;                                  \
    __shared__ DecodeTables<Coding> tables;                                    \
    __shared__ FewRowsSums<Tiles> sums;                                        \
    fewRows<Coding, Tiles>(args, tables, sums);                                \
  }
#define QLORA_FEW_ROWS_OF(Name, ...)                                           \
  QLORA_FEW_ROWS(Name, 1, __VA_ARGS__)                                         \
  QLORA_FEW_ROWS(Name, 2, __VA_ARGS__)
QLORA_FEW_ROWS_OF(4bit, 4, false)
QLORA_FEW_ROWS_OF(8bit, 8, false)
QLORA_FEW_ROWS_OF(4bit_zeros, 4, true)
QLORA_FEW_ROWS_OF(8bit_zeros, 8, true)
