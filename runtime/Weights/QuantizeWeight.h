// SPDX-License-Identifier: MIT

// Quantizes a weight of a file into an arena. A "resident" weight is then
// stored decoded. ArenaSink::quantize selects one of two functions, according
// to the arena's memory:
//
//   quantizeOnHost     uses the threads of this process
//   quantizeOnDevice   sends the elements as in the file; the device does the
//                      rest (ops quantize, quantize_scales and decode)
//
// Both read the file window by window and give the same bytes. On a device, the
// temporary data is in an arena that no entry uses yet: the window, the scales
// before their second quantization, and the packed tensor of a "resident"
// weight.

#ifndef QLORA_RUNTIME_WEIGHTS_QUANTIZEWEIGHT_H
#define QLORA_RUNTIME_WEIGHTS_QUANTIZEWEIGHT_H

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "runtime/ABI/kernel.h"
#include "runtime/Base/Status.h"
#include "runtime/Kernels/Math/Stored.h"

namespace qlora {

class ArenaSink;
class Device;
class LoadedModule;

struct UnquantizedWeight {
  std::string_view name;
  qlora_dtype fileType; ///< type in the file: f32, bf16 or f16
  /// Reads elements from index `first` on, in the type of the file.
  std::function<Status(int64_t first, std::span<uint8_t> out)> read;
  StoredLayout layout;
  int64_t columns; ///< columns of the matrix
  qlora_dtype type; ///< type in the arena: the layout's, or f32, bf16, f16
  uint64_t offset; ///< byte offset in the arena
};

/// A range at the start of an arena.
struct ScratchMemory {
  uint32_t arena = 0;
  uint64_t bytes = 0;
};

/// Returns the largest arena whose content is not used between entries.
ScratchMemory loadingScratch(const LoadedModule &module);

/// Returns the minimum scratch bytes on a device, for windows of one block.
uint64_t leastScratch(const UnquantizedWeight &weight);

Status quantizeOnHost(const UnquantizedWeight &weight, ArenaSink &arena);

/// Quantizes a weight on the device. `scratch` must have leastScratch() bytes,
/// and the arena must be zero, as after Device::load. Uses `sink`'s window.
Status quantizeOnDevice(const UnquantizedWeight &weight, Device &device,
                        uint32_t arena, ScratchMemory scratch, ArenaSink &sink);

/// Decodes a packed tensor on the host into the arena at `offset`.
Status decodeOnHost(const StoredLayout &layout, const uint8_t *packed,
                    int64_t columns, qlora_dtype type, uint64_t offset,
                    ArenaSink &arena);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_QUANTIZEWEIGHT_H
