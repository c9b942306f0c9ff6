// SPDX-License-Identifier: MIT

// Dot products of few rows with runs of a weight's rows, whose values are
// decoded in registers:
//
//   const RunDots dots = RunDots::of(weight, rows, depth, a, w);
//   if (dots.exist()) {
//     const int64_t width = dots.padded(count);
//     dots.arrange(type, row, count, x); // each row of a run
//     dots.add(bytes, {first, count, stride, outputs},
//              {x, width, rows, lanes});
//   }
//
// An output of a row has kLanes lanes, which add up to its dot product. Its
// bits do not depend on other rows and outputs. They depend on the CPU's
// instructions.

#ifndef QLORA_RUNTIME_KERNELS_CPU_RUNDOTS_H
#define QLORA_RUNTIME_KERNELS_CPU_RUNDOTS_H

#include "runtime/Kernels/Cpu/Decode.h"

namespace qlora {

/// Products of bf16 with bf16, two at a time, by AVX512_BF16 (HalfDots.cpp).
/// Values have the bits of DecodeRun::toRounded, but magnitudes below 2^-126
/// are 0. f32 weights are rounded to bf16.
///
/// addQuantized: blocks, `first` and `count` are multiples of kCodes / 2, and
/// `count` is at most RunDots::kMostElements. x has, of each kCodes elements,
/// first those of index 0, 4, 8, ..., then 1, 5, 9, ...; zeros pad the last
/// ones.
/// addBF16: `count` is a multiple of kRun. addF32: x is padded with zeros to
/// such a multiple.
struct HalfDots {
  static constexpr int64_t kCodes = 128, kRun = 64;
  template <typename Runs>
  using Add = void (*)(const Runs &runs, const DotRows<uint16_t> &rows);
  Add<StoredRuns> addQuantized;
  Add<DenseRuns<uint16_t>> addBF16;
  Add<DenseRuns<float>> addF32;

  /// Returns null if this CPU lacks the instructions.
  static const HalfDots *find();
};

class RunDots {
public:
  static constexpr int64_t kLanes = DecodeRun::kDotLanes;
  /// A run is a multiple of this, except the last of a row.
  static constexpr int64_t kRun = HalfDots::kCodes;

  /// Elements [first + i * stride, first + i * stride + count) of a weight, for
  /// each output i.
  struct Runs {
    int64_t first, count, stride, outputs;
  };

  /// Chooses the products of `rows` rows, rounded to `rowType`, with rows of
  /// `depth` values of `weight`, rounded to `weightType`. `weight` must outlive
  /// the result.
  static RunDots of(const StoredWeight &weight, int64_t rows, int64_t depth,
                    qlora_dtype rowType, qlora_dtype weightType);

  /// Returns false if this CPU has no such products, if it is faster to decode
  /// first, or if depth or blocks are no multiples of the lanes.
  bool exist() const { return half || whole; }
  /// Returns the bytes of an arranged element.
  int64_t elementBytes() const { return half ? 2 : 4; }
  /// Returns the elements of an arranged row of a run.
  int64_t padded(int64_t count) const {
    return (count + unit - 1) / unit * unit;
  }

  /// Writes `count` elements of a row of `type` as add() needs them, then
  /// zeros: padded(count) elements, at most kMostElements. If no products
  /// exist, writes them in order, in f32.
  void arrange(qlora_dtype type, const void *row, int64_t count,
               void *to) const;
  static constexpr int64_t kMostElements = 4096;
  /// Adds the products of arranged rows with runs of the weight.
  void add(const void *bytes, const Runs &runs,
           const DotRows<void> &rows) const;

private:
  const StoredWeight *weight = nullptr;
  qlora_dtype rowType = QLORA_DTYPE_F32;
  const HalfDots *half = nullptr;
  const DecodeRun *whole = nullptr;
  DecodeRun::AddDots addStored = nullptr; ///< if `whole`: of its functions
  /// Elements that are arranged together.
  int64_t unit = kLanes;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_RUNDOTS_H
