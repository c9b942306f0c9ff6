// SPDX-License-Identifier: MIT

// Decodes ranges of a stored weight; decode and panel_matmul use it.

#ifndef QLORA_RUNTIME_KERNELS_CPU_DECODE_H
#define QLORA_RUNTIME_KERNELS_CPU_DECODE_H

#include <algorithm>
#include <type_traits>

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Kernels/Math/Stored.h"

namespace qlora {

/// The zero point and the scale of a block.
struct ScaledFrom {
  float zero, absmax;

  static ScaledFrom of(const StoredTensor &tensor, int64_t blockIndex) {
    return {tensor.zero(blockIndex), tensor.absmax(blockIndex)};
  }
  float operator()(float value) const { return (value - zero) * absmax; }
};

/// Consecutive elements of a quantized tensor.
struct StoredRun {
  StoredTensor tensor;
  /// log2 of the block size, or -1 if the size is no power of two.
  int scaleShift;
  int64_t first, count;
};

/// Runs of `outputs` rows of a quantized weight, `stride` elements apart; first
/// the run of the first row.
struct StoredRuns : StoredRun {
  int64_t stride, outputs;
  void advance() { first += stride; }
};

/// Runs of rows of a floating-point weight, as StoredRuns.
template <typename W> struct DenseRuns {
  const W *weights; ///< of the first run
  int64_t count;    ///< elements of a run
  int64_t stride, outputs;
  void advance() { weights += stride; }
};

/// `count` rows of X, `stride` elements apart, each with the elements of a run.
/// Products are added to kDotLanes lanes for each output and row; those of an
/// output's rows are adjacent. If `clears`, lanes are 0 before that.
template <typename X> struct DotRows {
  const X *x;
  int64_t stride, count;
  float *sums;
  bool clears = false;
};

/// Functions that decode 4-bit codes with table look-ups in registers. The bits
/// are those of StoredTensor::element. toBF16 rounds them to nearest even, and
/// toRounded too, but widens the result to f32. The first element and each
/// block must begin at an even index. The functions read no byte after the last
/// code and write no value after `count`.
///
/// addDots and addRoundedDots do not store the values of toF32 and toRounded,
/// but add their products with rows of x to kDotLanes lanes, with fused
/// multiply-adds: lane i of a row gets the products of the elements i, i + 32,
/// i + 64, ... of x in this order. Blocks, `first` and `count` must be
/// multiples of kDotLanes. RunDots.h chooses them.
struct DecodeRun {
  static constexpr int64_t kDotLanes = 32;
  using AddDots = void (*)(const StoredRuns &runs, const DotRows<float> &rows);
  template <typename W>
  using AddDenseDots = void (*)(const DenseRuns<W> &runs,
                                const DotRows<float> &rows);

  void (*toF32)(const StoredRun &run, float *out);
  void (*toRounded)(const StoredRun &run, float *out);
  void (*toBF16)(const StoredRun &run, uint16_t *out);
  AddDots addDots, addRoundedDots;
  /// Maximum number of rows for which dots are faster than decoding first.
  int64_t mostDotRows;
  /// Whether x has, of each 32 elements, first those of even index. So a high
  /// and a low nibble of a byte are codes of different vectors.
  bool splitsPairs;
  /// As addDots, with weights in bf16 or f32, and with x in order; or null.
  AddDenseDots<uint16_t> addBF16Dots;
  AddDenseDots<float> addF32Dots; ///< `count` may be any number

  /// Returns the functions for this CPU's instructions, or null.
  static const DecodeRun *find();
};

/// Computes the scales of consecutive blocks, StoredTensor::absmax.
void absmaxOfBlocks(const StoredTensor &tensor, int64_t first, int64_t count,
                    float *out);

/// Prefetches weights that are read soon after those at `weights`: a core
/// executes only a few cache lines ahead, while memory needs a dozen.
inline void prefetchAhead(const void *weights) {
  constexpr int kBytes = 8192;
  __builtin_prefetch(static_cast<const char *>(weights) + kBytes);
}

/// Calls add(run, rows) for each run, whose lanes are rows.sums.
template <typename Runs, typename X, typename Add>
void forRuns(Runs runs, DotRows<X> rows, Add add) {
  const int64_t lanes = rows.count * DecodeRun::kDotLanes;
  for (int64_t i = 0; i < runs.outputs; ++i, runs.advance()) {
    if (rows.clears)
      std::fill_n(rows.sums, lanes, 0.0f);
    add(runs, rows);
    rows.sums += lanes;
  }
}

/// Calls add(number, x, lanes) for groups of `Most`, four, two and one rows,
/// the number as a type, with the group's first row and lanes.
template <int Most = 4, typename X, typename Add>
void forRowGroups(const DotRows<X> &rows, Add add) {
  int64_t row = 0;
  const auto addGroup = [&](auto number) {
    for (; row + number <= rows.count; row += number)
      add(number, rows.x + row * rows.stride,
          rows.sums + row * DecodeRun::kDotLanes);
  };
  addGroup(std::integral_constant<int, Most>());
  addGroup(std::integral_constant<int, 4>());
  addGroup(std::integral_constant<int, 2>());
  addGroup(std::integral_constant<int, 1>());
}

/// Return the functions that use AVX-512 (DecodeRun.cpp) or AVX2
/// (DecodeRunAvx2.cpp); null if this CPU lacks the instructions.
const DecodeRun *findAvx512DecodeRun();
const DecodeRun *findAvx2DecodeRun();

/// The codes of a run, block by block. The first element of the run and of each
/// block must have an even index, so that its code is in a high nibble.
class BlockCodes {
public:
  explicit BlockCodes(const StoredRun &run)
      : tensor(run.tensor), block(run.tensor.block), element(run.first),
        end(run.first + run.count),
        // A division takes as long as decoding 64 elements.
        index(run.scaleShift < 0 ? element / block
                                 : element >> run.scaleShift),
        blockEnd((index + 1) * block) {}

  /// Moves on to the next codes, which have one scale. Returns false at the end
  /// of the run.
  bool next() {
    if (element >= end)
      return false;
    scale = ScaledFrom::of(tensor, index);
    packed = tensor.packed + (element >> 1);
    count = (blockEnd < end ? blockEnd : end) - element;
    element += count;
    blockEnd += block;
    ++index;
    return true;
  }

  ScaledFrom scale = {};
  const uint8_t *packed = nullptr;
  int64_t count = 0;

private:
  const StoredTensor &tensor;
  int64_t block, element, end, index, blockEnd;
};

/// A weight [rows, columns], flattened; quantized or floating-point.
struct StoredWeight {
  qlora_dtype dtype;
  int64_t columns;
  StoredLayout layout; ///< layout of a quantized weight
  /// log2 of the block size, or -1 if the size is no power of two.
  int scaleShift = -1;
  const DecodeRun *decodeRun = nullptr; ///< 4-bit decoder, or null

  bool isQuantized() const { return storedFormat(dtype) != nullptr; }

  /// Describes the operand w of a request with the constants rows, columns,
  /// block and double_quant.
  static StoredWeight of(const KernelRequest &request);
  /// Describes a quantized weight with rows of `columns` elements.
  static StoredWeight of(const StoredLayout &layout, int64_t columns);

  /// Decodes elements [first, first + count) of `weight` to `outType` (f32,
  /// bf16 or f16), on all threads. A range may begin within a block or byte.
  void decode(const void *weight, int64_t first, int64_t count,
              qlora_dtype outType, void *out) const;

  struct Part {
    int64_t firstRow, rowCount, firstColumn, columnCount;
  };
  /// Decodes a range of the matrix to a dense `out`, on the calling thread.
  void decodePart(const void *weight, const Part &part, qlora_dtype outType,
                  void *out) const;
  /// Decodes elements [first, first + count) on the calling thread to `type`,
  /// f32 or bf16 or that of a floating-point weight, and widens them to f32.
  void decodeWide(const void *weight, int64_t first, int64_t count,
                  qlora_dtype type, float *out) const;

  StoredRun runOf(const void *weight, int64_t first, int64_t count) const {
    return {StoredTensor::of(layout, weight), scaleShift, first, count};
  }
  /// Describes a floating-point weight, whose rows are `columns` apart.
  static StoredWeight dense(qlora_dtype dtype, int64_t columns);

private:
  void decodeSerial(const void *weight, int64_t first, int64_t count,
                    qlora_dtype outType, void *out) const;
  void decodeQuantized(const void *weight, int64_t first, int64_t count,
                       qlora_dtype outType, void *out) const;
  void prefetch(const void *weight, int64_t first, int64_t count) const;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_DECODE_H
