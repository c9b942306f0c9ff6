// SPDX-License-Identifier: MIT

// Quantizes whole tensors. Math/Stored.h has the layout of the bytes, Decode.h
// the decoder. Each format gives the bytes of a reference implementation:
//
//   NF4, FP4   bitsandbytes 0.50 on the CPU, double quantization too
//   LLM.int8   bitsandbytes: rows are rounded to float16 first
//   FP8        torchao's Float8WeightOnlyConfig from float32: a row's largest
//              magnitude / 448, quotients rounded to nearest even; rows of
//              zeros, which torchao makes NaN, stay zeros
//   MXFP4      triton_kernels as transformers calls it, from bfloat16: a
//              block's scale is the smallest power of two that is at least its
//              largest magnitude / 6, so no value is clipped; values are
//              rounded to nearest even
//
// Math/NF4Quantize.h has the arithmetic of NF4, which CUDA shares, and the
// offset of scales. One thread quantizes a block, so bits do not depend on the
// number of threads.

#ifndef QLORA_RUNTIME_KERNELS_CPU_QUANTIZETENSOR_H
#define QLORA_RUNTIME_KERNELS_CPU_QUANTIZETENSOR_H

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "runtime/Kernels/Math/Stored.h"

namespace qlora {

/// Whether weights can be quantized to this format on load.
bool isQuantizer(qlora_dtype dtype);
/// Whether `quantize` and `quantize_scales` of Kernels.def have this format.
bool hasDeviceQuantizer(qlora_dtype dtype);

/// The 256 values of bitsandbytes' signed dynamic map, ascending.
const std::array<float, 256> &nf4DynamicMap();

/// Number of elements read at a time, in whole blocks: large, so that starting
/// threads costs little, but small compared with memory.
inline constexpr int64_t kQuantizedWindow = int64_t{1} << 22;

/// The elements to quantize. They are read in windows, so that the file need
/// not be in memory completely.
struct ElementSource {
  /// Writes elements [first, first + count) as f32 into `out`. Called from
  /// several threads at once, each with its own range.
  std::function<void(int64_t first, int64_t count, float *out)> read;
  /// Announces elements [first, first + count), at most kQuantizedWindow, that
  /// `read` needs next. Called from one thread, in order; may be empty.
  std::function<void(int64_t first, int64_t count)> fetch;
};

/// Quantizes `layout.elements` elements into `out` (layout.bytes, aligned to
/// 4), code book and padding included. NaN and infinity are not checked: their
/// block decodes to NaN, as in bitsandbytes.
void quantizeStored(const StoredLayout &layout, const ElementSource &source,
                 uint8_t *out);
/// Quantizes elements that are already in memory.
void quantizeStored(const StoredLayout &layout, const float *elements,
                    uint8_t *out);

/// Quantizes all blocks (the last may be partial) into packed
/// [layout.packedBytes] and scales [blocks]. The scales stay f32.
void quantizeBlocks(const StoredLayout &layout, const ElementSource &source,
                    uint8_t *packed, float *scales);
/// Returns the offset for double quantization: the mean of the scales.
float nf4ScaleOffset(std::span<const float> scales);
/// Quantizes scales with the given offset and map [256]: a code for each scale,
/// and absmax [ceil(scales / 256)].
void quantizeScales(std::span<const float> scales, float offset,
                       const float *map, uint8_t *codes, float *absmax);
/// Quantizes scales with the dynamic map into a layout with double
/// quantization, map and offset included.
void quantizeScales(const StoredLayout &layout, std::span<const float> scales,
                       float offset, uint8_t *out);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_QUANTIZETENSOR_H
