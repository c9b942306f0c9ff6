// SPDX-License-Identifier: MIT

// The quantisers. The layout of the bytes: runtime/Kernels/Math/Stored.h; the
// decoder: Decode.h. Whose bytes they are:
//
//   NF4, FP4   bitsandbytes 0.50 on the CPU, double quantisation too
//   LLM.int8   bitsandbytes: rows of float16, whatever the file has
//   FP8        torchao's Float8WeightOnlyConfig from float32: a row's largest
//              magnitude / 448, quotients rounded to nearest even; rows of
//              zeros, which it makes NaN, stay zeros
//   MXFP4      triton_kernels as transformers calls it: from bfloat16, a scale
//              that is the power of two from largest magnitude / 6 on, so that
//              nothing is clipped, numbers rounded to nearest even
//
// The arithmetic of NF4, which CUDA shares, and what a scale's offset is:
// runtime/Kernels/Math/NF4Quantize.h. All f32 operations are rounded one by
// one: the file is compiled with -ffp-contract=off. Threads split blocks, so
// their number changes no bit.

#ifndef QLORA_RUNTIME_KERNELS_CPU_QUANTIZENF4_H
#define QLORA_RUNTIME_KERNELS_CPU_QUANTIZENF4_H

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "runtime/Kernels/Math/Stored.h"

namespace qlora {

/// Whether weights become this format when they are loaded.
bool isQuantizer(qlora_dtype dtype);
/// Whether the ops quantize and quantize_scales do the same on any device.
bool hasDeviceQuantizer(qlora_dtype dtype);

/// The 256 values of the dynamic map, which increase.
const std::array<float, 256> &nf4DynamicMap();

/// Elements that are fetched at a time: enough that starting the threads does
/// not show, few enough that their memory does not either. Whole blocks.
inline constexpr int64_t kQuantizedWindow = int64_t{1} << 22;

/// The elements to quantise, in windows so that a file need not be in memory
/// as a whole.
struct ElementSource {
  /// Elements [first, first + count) as f32 into `out`. Called from several
  /// threads at once, each with its own range.
  std::function<void(int64_t first, int64_t count, float *out)> read;
  /// Elements [first, first + count), at most kQuantizedWindow, are what is read
  /// next. Called from one thread, in order; may be empty.
  std::function<void(int64_t first, int64_t count)> fetch;
};

/// Quantises `layout.elements` elements into `out` (layout.bytes, aligned to
/// 4), code book and padding included. A NaN or infinity in the source is
/// not looked for: its block decodes to NaN, as in bitsandbytes.
void quantizeStored(const StoredLayout &layout, const ElementSource &source,
                 uint8_t *out);
/// The same for elements already in memory.
void quantizeStored(const StoredLayout &layout, const float *elements, uint8_t *out);

/// The parts of it. All blocks, of which the last may be partial: packed
/// [layout.packedBytes] and scales [blocks].
void quantizeBlocks(const StoredLayout &layout, const ElementSource &source,
                    uint8_t *packed, float *scales);
/// The offset of the second quantisation.
float nf4ScaleOffset(std::span<const float> scales);
/// The second quantisation alone, given an offset and a map [256]: a code for
/// each scale, and absmax [ceil(scales / 256)].
void quantizeScales(std::span<const float> scales, float offset,
                       const float *map, uint8_t *codes, float *absmax);
/// The same with the dynamic map, into a layout with double quantisation, map
/// and offset included.
void quantizeScales(const StoredLayout &layout, std::span<const float> scales,
                       float offset, uint8_t *out);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_QUANTIZENF4_H
