// SPDX-License-Identifier: MIT

// The quantisers. The layout of the bytes is in runtime/Kernels/Math/Stored.h,
// the decoder in Decode.h. Each format has the bytes of a reference:
//
//   NF4, FP4   bitsandbytes 0.50 on the CPU, double quantisation too
//   LLM.int8   bitsandbytes: rows of float16, whatever the file has
//   FP8        torchao's Float8WeightOnlyConfig from float32: a row's largest
//              magnitude / 448, quotients rounded to nearest even; rows of
//              zeros, which it makes NaN, stay zeros
//   MXFP4      triton_kernels as transformers calls it: from bfloat16, a scale
//              that is the power of two from largest magnitude / 6 on, so that
//              nothing is clipped; values are rounded to nearest even
//
// runtime/Kernels/Math/NF4Quantize.h has the arithmetic of NF4, which CUDA
// shares, and the offset of scales. f32 operations are rounded separately: the
// file is compiled with -ffp-contract=off. Each block is the work of one
// thread, so the number of threads changes no bit.

#ifndef QLORA_RUNTIME_KERNELS_CPU_QUANTIZENF4_H
#define QLORA_RUNTIME_KERNELS_CPU_QUANTIZENF4_H

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "runtime/Kernels/Math/Stored.h"

namespace qlora {

/// Whether weights can be quantised to this format on load.
bool isQuantizer(qlora_dtype dtype);
/// Whether the ops quantize and quantize_scales do it on any device.
bool hasDeviceQuantizer(qlora_dtype dtype);

/// The 256 values of the dynamic map, ascending.
const std::array<float, 256> &nf4DynamicMap();

/// Elements fetched at a time, whole blocks: enough that the cost of starting
/// threads is negligible, few enough that their memory is too.
inline constexpr int64_t kQuantizedWindow = int64_t{1} << 22;

/// The elements to quantise, in windows, so that a file need not be in memory
/// as a whole.
struct ElementSource {
  /// Writes elements [first, first + count) as f32 into `out`. Called from
  /// several threads at once, each with its own range.
  std::function<void(int64_t first, int64_t count, float *out)> read;
  /// Announces elements [first, first + count), at most kQuantizedWindow, that
  /// `read` needs next. Called from one thread, in order; may be empty.
  std::function<void(int64_t first, int64_t count)> fetch;
};

/// Quantises `layout.elements` elements into `out` (layout.bytes, aligned to
/// 4), code book and padding included. NaN and infinity are not checked: their
/// block decodes to NaN, as in bitsandbytes.
void quantizeStored(const StoredLayout &layout, const ElementSource &source,
                 uint8_t *out);
/// Quantises elements that are already in memory.
void quantizeStored(const StoredLayout &layout, const float *elements,
                    uint8_t *out);

/// The first step: quantises all blocks (the last may be partial) into packed
/// [layout.packedBytes] and scales [blocks].
void quantizeBlocks(const StoredLayout &layout, const ElementSource &source,
                    uint8_t *packed, float *scales);
/// Returns the offset of the double quantisation.
float nf4ScaleOffset(std::span<const float> scales);
/// Quantises scales with the given offset and map [256]: a code for each scale,
/// and absmax [ceil(scales / 256)].
void quantizeScales(std::span<const float> scales, float offset,
                       const float *map, uint8_t *codes, float *absmax);
/// Quantises scales with the dynamic map into a layout with double
/// quantisation, map and offset included.
void quantizeScales(const StoredLayout &layout, std::span<const float> scales,
                       float offset, uint8_t *out);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_QUANTIZENF4_H
