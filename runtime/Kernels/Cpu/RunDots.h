// SPDX-License-Identifier: MIT

// Dot products of few rows with runs of a weight's rows, whose values are
// decoded in registers:
//
//   const RunDots dots = RunDots::of(weight, rows, depth, a, w);
//   if (dots.exist())
//     dots.arrange(row, count, x); // each row of a run
//     dots.add(bytes, first, count, {x, count, rows, lanes});
//
// A row has kLanes lanes, which add up to its dot product. Its bits do not
// depend on other rows. They depend on the CPU's instructions.

#ifndef QLORA_RUNTIME_KERNELS_CPU_RUNDOTS_H
#define QLORA_RUNTIME_KERNELS_CPU_RUNDOTS_H

#include "runtime/Kernels/Cpu/Decode.h"

namespace qlora {

/// Products of bf16 with bf16, two at a time, by AVX512_BF16 (HalfDots.cpp).
/// Values have the bits of DecodeRun::toRounded, but magnitudes below 2^-126
/// are 0. Blocks, `first` and `count` are multiples of kRun.
struct HalfDots {
  static constexpr int64_t kRun = 64;
  void (*addQuantized)(const StoredRun &run, const DotRows<uint16_t> &rows);
  void (*addDense)(const uint16_t *weights, int64_t count,
                   const DotRows<uint16_t> &rows);

  /// Returns null if this CPU lacks the instructions.
  static const HalfDots *find();
};

class RunDots {
public:
  static constexpr int64_t kLanes = DecodeRun::kDotLanes;

  /// Chooses the products of `rows` rows, rounded to `rowType`, with rows of
  /// `depth` values of `weight`, rounded to `weightType`. `weight` must outlive
  /// the result.
  static RunDots of(const StoredWeight &weight, int64_t rows, int64_t depth,
                    qlora_dtype rowType, qlora_dtype weightType);

  /// Returns false if this CPU has no such products, if it is faster to decode
  /// first, or if depth or blocks are no multiples of the lanes.
  bool exist() const { return half || whole || dense; }
  /// Returns the bytes of an arranged element.
  int64_t elementBytes() const { return half ? 2 : 4; }
  /// Elements of a run are a multiple of this.
  static constexpr int64_t kRun = HalfDots::kRun;

  /// Writes a row of a run as add() needs it.
  void arrange(const float *row, int64_t count, void *to) const;
  /// Adds the products of arranged rows with elements [first, first + count) of
  /// the weight.
  void add(const void *bytes, int64_t first, int64_t count,
           const DotRows<void> &rows) const;

private:
  const StoredWeight *weight = nullptr;
  const HalfDots *half = nullptr;
  DecodeRun::AddDots whole = nullptr;
  DecodeRun::AddBF16Dots dense = nullptr;
  /// Elements that are reordered together, first those of even index: so the
  /// high and the low nibble of a byte are codes of different vectors. 0: none.
  int64_t splitRun = 0;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_RUNDOTS_H
