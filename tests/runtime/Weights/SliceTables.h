// SPDX-License-Identifier: MIT

// A module whose frozen parameters are sharded over tp ranks.

#ifndef QLORA_TESTS_RUNTIME_WEIGHTS_SLICETABLES_H
#define QLORA_TESTS_RUNTIME_WEIGHTS_SLICETABLES_H

#include <vector>

#include "runtime/Weights/Slices.h"
#include "tests/runtime/Weights/PieceTables.h"

namespace qlora {

/// An unsharded tensor and how it is sharded. Without segments, every rank has
/// the complete tensor.
struct SliceParameter {
  PieceParameter whole;
  uint32_t dimension = 0;
  std::vector<int64_t> segments = {};

  SlicedDimension cutInto(int64_t slices) const {
    return {whole.shape, dimension, segments, slices};
  }
  /// kept() is the format in memory, quantized() the format after quantization.
  SlicedFormat kept() const {
    return {whole.type, whole.block, whole.isDouble};
  }
  SlicedFormat quantized() const {
    return {static_cast<qlora_dtype>(whole.format), whole.block,
            whole.isDouble};
  }
};

class SliceTables : public PieceTables {
public:
  SliceTables(const std::vector<SliceParameter> &rows, uint32_t slices)
      : PieceTables({}, 1) {
    header.mesh.tp = slices;
    uint64_t offset = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      qlora_parameter p = cut(rows[i], slices);
      p.offset = offset;
      offset += (p.bytes + 63) / 64 * 64;
      parameters.insert(parameters.end() - 1, p);
    }
    arenas[kDemoFrozen].bytes = offset;
  }

private:
  qlora_parameter cut(const SliceParameter &row, uint32_t slices) {
    PieceParameter slice = row.whole;
    if (slices == 1 || row.segments.empty()) {
      if (slice.quantization == QLORA_QUANTIZATION_NONE)
        slice.parts = 0; // only a tp shard may have parts
      return make(slice, 1);
    }
    slice.shape[row.dimension] /= slices;
    slice.isDouble = doubleQuantOfSlice(row.quantized()) == 1;
    if (slice.format != 0)
      slice.block = blockOfSlice(row.quantized(), row.cutInto(slices));
    qlora_parameter p = make(slice, 1);
    p.double_quant = doubleQuantOfSlice(row.quantized());
    p.slices = slices;
    p.slice_dimension = row.dimension;
    p.segments = static_cast<uint32_t>(row.segments.size());
    p.first_segment = static_cast<uint32_t>(constants.size());
    constants.insert(constants.end(), row.segments.begin(), row.segments.end());
    return p;
  }
};

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_WEIGHTS_SLICETABLES_H
