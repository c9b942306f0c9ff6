// SPDX-License-Identifier: MIT

// A weight of a file to few bits in an arena, or ("resident") to the numbers
// that these stand for. The loader asks the arena (ArenaSink::quantize),
// which knows where its memory is:
//
//   quantizeOnHost     on the threads of this process; a tensor that does not
//                      stay packed is packed whole on the host first
//   quantizeOnDevice   sends the elements as the file has them, and lets the
//                      device do the rest (ops quantize, quantize_scales and
//                      decode of Kernels.def)
//
// Both read the file window by window and give the same bytes. On a device, what exists for a while only -- the
// window, the scales before their second quantisation, a packed tensor that is
// decoded -- is in scratch memory that the plan has and no entry uses yet.

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
  qlora_dtype fileType; ///< f32, bf16 or f16
  /// Elements from `first` on, as the file has them.
  std::function<Status(int64_t first, std::span<uint8_t> out)> read;
  StoredLayout layout;
  int64_t columns; ///< of the matrix
  qlora_dtype type; ///< in the arena: the layout's, or f32, bf16, f16
  uint64_t offset; ///< in the arena
};

/// A range at the start of an arena.
struct ScratchMemory {
  uint32_t arena = 0;
  uint64_t bytes = 0;
};

/// The largest arena of a module that nothing is kept in between entries.
ScratchMemory loadingScratch(const LoadedModule &module);

/// Scratch that a weight needs on a device for windows of one block, at least.
uint64_t leastScratch(const UnquantizedWeight &weight);

Status quantizeOnHost(const UnquantizedWeight &weight, ArenaSink &arena);

/// `scratch` has leastScratch() bytes; the arena's bytes are still zero, as
/// Device::load leaves them. `sink`: whose window is used.
Status quantizeOnDevice(const UnquantizedWeight &weight, Device &device,
                        uint32_t arena, ScratchMemory scratch, ArenaSink &sink);

/// Decodes a packed tensor on the host into the elements at an offset.
Status decodeOnHost(const StoredLayout &layout, const uint8_t *packed,
                    int64_t columns, qlora_dtype type, uint64_t offset,
                    ArenaSink &arena);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_QUANTIZEWEIGHT_H
