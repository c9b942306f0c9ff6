// SPDX-License-Identifier: MIT

// Defines the slices of a weight (qlora_parameter::slices in
// ABI/module.h), and which tensors can be sharded this way. The compiler shards
// only these tensors, and the runtime checks this before it fills a shard. Both
// include this file, so it includes nothing large.
//
// A tensor is quantized as a whole and then sharded, so that tensor-parallel
// ranks multiply with the same bits as a single rank. A tensor is stored
// row-major in consecutive blocks (Kernels/Math/Stored.h), and so is a shard.
// So each run of elements in a shard must consist of complete blocks, except
// for unquantized and "resident" weights. In this tensor, each letter is an
// element:
//
//   whole [2, 8], blocks of 2     aabbccdd     dimension 1 in 2 shards, with
//                                 eeffgghh     `segments` 4 and 4
//
//   shard 0 aacc shard 1 bbdd     a shard has complete blocks of the tensor,
//           eegg         ffhh     with their scales and zero points
//
// The scales of a shard can differ from those of the complete tensor:
//
// * A format with row blocks (takesRows) has one scale per row. If rows are
//   split, every shard has all scales, for shorter blocks (blockOfSlice).
// * Double-quantized scales share a factor in groups of 256 blocks, which
//   sharding splits. So a shard has decoded scales, unless the factor is always
//   1, as in MXFP4 (doubleQuantOfSlice).

#ifndef QLORA_RUNTIME_WEIGHTS_SLICES_H
#define QLORA_RUNTIME_WEIGHTS_SLICES_H

#include <cstdint>
#include <span>

#include "runtime/Kernels/Math/Stored.h"

namespace qlora {

/// One dimension of a complete tensor, sharded over ranks.
struct SlicedDimension {
  std::span<const int64_t> shape; ///< shape of the complete tensor
  uint32_t dimension;
  std::span<const int64_t> segments; ///< ranges, each split over all ranks
  int64_t slices;

  /// Returns the product of the dimensions before `dimension`.
  int64_t outer() const {
    int64_t count = 1;
    for (uint32_t i = 0; i < dimension; ++i)
      count *= shape[i];
    return count;
  }
  /// Returns the product of the dimensions after `dimension`.
  int64_t inner() const {
    int64_t count = 1;
    for (size_t i = dimension + 1; i < shape.size(); ++i)
      count *= shape[i];
    return count;
  }
  bool isLast() const { return dimension + 1 == shape.size(); }
  /// Returns whether the segments fill the dimension and all shards are equal.
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

/// The format of the whole tensor. `block` elements share a scale, which is
/// itself quantized if `doubleQuant`. Unquantized tensors only have a `dtype`.
struct SlicedFormat {
  qlora_dtype dtype;
  int64_t block = 0;
  bool doubleQuant = false;
};

/// Returns whether several shards need the same scale of the complete tensor.
constexpr bool dividesRowScales(const SlicedFormat &format,
                                const SlicedDimension &of) {
  const StoredFormat *stored = storedFormat(format.dtype);
  return stored && stored->takesRows && of.isLast() &&
         format.block == of.shape.back();
}

/// Returns the elements of a shard that share a scale: qlora_parameter::block.
/// For a "resident" weight, `format` is the quantized format.
constexpr int64_t blockOfSlice(const SlicedFormat &format,
                               const SlicedDimension &of) {
  return dividesRowScales(format, of) ? format.block / of.slices : format.block;
}

/// Returns qlora_parameter::double_quant of a shard:
///
///   0   the complete tensor is not double-quantized
///   1   the shard's scales are codes, as in the complete tensor
///   2   the shard's scales are decoded
constexpr uint32_t doubleQuantOfSlice(const SlicedFormat &format) {
  const StoredFormat *stored = storedFormat(format.dtype);
  if (!stored || !format.doubleQuant)
    return 0;
  return stored->codedScales == CodedScales::kAlways ? 1 : 2;
}

/// Returns whether the shards of a tensor can be stored in the arena's format,
/// which is qlora_parameter::dtype for a "resident" weight.
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
