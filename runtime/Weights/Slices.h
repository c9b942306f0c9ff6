// SPDX-License-Identifier: MIT

// What a slice of a weight is (qlora_parameter::slices in ABI/module.h), and
// which tensors have slices: what the compiler promises, and the runtime checks
// before it fills one. For both, so that it includes nothing large.
//
// A tensor is quantised as a whole and then cut, so that ranks that share a
// product multiply with the bits that one rank alone would have. In memory its
// elements are flat, in blocks that follow each other (Kernels/Math/Stored.h);
// a slice is flat in turn, in blocks of its own. That works where every run of
// elements that stays together is whole blocks:
//
//   whole [2, 8], blocks of 2     aabbccdd     dimension 1 in 2 slices, in the
//                                 eeffgghh     segments 4 and 4
//
//   slice 0 aacc slice 1 bbdd     its blocks are those of the whole, and so are
//           eegg         ffhh     their scales and zero points
//
// Three things are not as in the whole:
//
// * A format that takes rows may have one scale for a row of the whole. Cut
//   across, every slice has that scale for its part of the row, which is its
//   row: its block is then shorter (blockOfSlice).
// * Scales that are codes share a factor in runs of 256 blocks, of which a
// slice
//   has parts. So a slice has the scales themselves, unless the factor is
//   always 1, as MXFP4's is (doubleQuantOfSlice).
// * What is kept as plain numbers, "resident" weights too, can be cut anywhere.

#ifndef QLORA_RUNTIME_WEIGHTS_SLICES_H
#define QLORA_RUNTIME_WEIGHTS_SLICES_H

#include <cstdint>
#include <span>

#include "runtime/Kernels/Math/Stored.h"

namespace qlora {

/// One dimension of a whole tensor, divided among ranks.
struct SlicedDimension {
  std::span<const int64_t> shape; ///< of the whole
  uint32_t dimension;
  std::span<const int64_t> segments; ///< runs of it; each has all slices
  int64_t slices;

  /// Rows that are cut, flattened: those of all dimensions before.
  int64_t outer() const {
    int64_t count = 1;
    for (uint32_t i = 0; i < dimension; ++i)
      count *= shape[i];
    return count;
  }
  /// Elements of one step in the dimension.
  int64_t inner() const {
    int64_t count = 1;
    for (size_t i = dimension + 1; i < shape.size(); ++i)
      count *= shape[i];
    return count;
  }
  bool isLast() const { return dimension + 1 == shape.size(); }
  /// Whether segments are the dimension, and all slices equal.
  bool isComplete() const {
    if (dimension >= shape.size() || slices < 1)
      return false;
    int64_t left = shape[dimension];
    for (const int64_t length : segments) {
      if (length <= 0 || length > left || length % slices != 0)
        return false;
      left -= length;
    }
    return left == 0;
  }
};

/// A format of the whole tensor: elements that share a scale, and whether
/// scales are codes. Of plain numbers `dtype` says all.
struct SlicedFormat {
  qlora_dtype dtype;
  int64_t block = 0;
  bool doubleQuant = false;
};

/// Whether one scale of the whole is in several slices.
constexpr bool dividesRowScales(const SlicedFormat &format,
                                const SlicedDimension &of) {
  const StoredFormat *stored = storedFormat(format.dtype);
  return stored && stored->takesRows && of.isLast() &&
         format.block == of.shape.back();
}

/// Elements of a slice that share a scale: qlora_parameter::block. Here and
/// in doubleQuantOfSlice() the format is that of few bits, also of a "resident"
/// weight.
constexpr int64_t blockOfSlice(const SlicedFormat &format,
                               const SlicedDimension &of) {
  return dividesRowScales(format, of) ? format.block / of.slices : format.block;
}

/// qlora_parameter::double_quant of a slice; its layout has double quantisation
/// where this is 1.
constexpr uint32_t doubleQuantOfSlice(const SlicedFormat &format) {
  const StoredFormat *stored = storedFormat(format.dtype);
  if (!stored || !format.doubleQuant)
    return 0;
  return stored->codedScales == CodedScales::kAlways ? 1 : 2;
}

/// Whether the slices of a tensor are tensors of the format that it is kept in:
/// of a "resident" weight qlora_parameter::dtype.
inline bool canSlice(const SlicedFormat &format, const SlicedDimension &of) {
  if (!of.isComplete())
    return false;
  const StoredFormat *stored = storedFormat(format.dtype);
  if (!stored)
    return true;
  if (!stored->takesBlock(format.block) ||
      !stored->takesDoubleQuant(format.doubleQuant))
    return false;
  const int64_t unit = dividesRowScales(format, of) ? 1 : format.block;
  for (const int64_t length : of.segments) {
    const int64_t run = length / of.slices * of.inner();
    if (run % unit != 0 || run * stored->bits % 8 != 0)
      return false;
  }
  return true;
}

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_SLICES_H
