// SPDX-License-Identifier: MIT

// A frozen tensor as its files have it, in memory of this process, of which
// ranks get pieces or slices (FrozenPieces.h).

#ifndef QLORA_RUNTIME_WEIGHTS_WHOLETENSOR_H
#define QLORA_RUNTIME_WEIGHTS_WHOLETENSOR_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/Base/HostMemory.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Weights/ByteCut.h"
#include "runtime/Weights/Parameters.h"
#include "runtime/Weights/Slices.h"

namespace qlora {

/// What a slice is a slice of: its shape, block and bytes; the parameter
/// itself where it has no slices. A row of a slice that is one block is taken
/// for the part of such a row of the whole.
qlora_parameter wholeOf(const qlora_parameter &slice);

/// The same for a row of the module's table, checked: kDataLoss where the whole
/// has no such slices (Slices.h). Of a weight that its file has quantised, the
/// file says what a row is.
StatusOr<qlora_parameter> findWhole(const LoadedModule &module,
                                    const ParameterSources &sources,
                                    const qlora_parameter &slice);

/// How it is cut. The module and `whole` outlive it.
SlicedDimension dimensionOf(const LoadedModule &module,
                            const qlora_parameter &slice,
                            const qlora_parameter &whole);

/// Keeps its memory for the next one.
class WholeTensor {
public:
  /// Fills it; `of` is a row of the module's table.
  Status make(const LoadedModule &module, const ParameterSources &sources,
              const qlora_parameter &of);

  /// The part of rank number `rank` of those that hold the tensor together:
  /// arenaBytesOf() bytes. It reads this tensor.
  ByteCut cutFor(uint64_t rank) const;

private:
  /// What is counted: elements that have so many bytes together.
  struct Unit {
    int64_t elements, bytes;
  };
  ByteCut pieceFor(uint64_t rank) const;
  ByteCut sliceFor(uint64_t rank) const;
  /// The elements of a slice, of which the whole has units from byte `from` on.
  void addElements(ByteCut &cut, int64_t at, const uint8_t *from, Unit unit,
                   uint64_t rank) const;
  void addScales(ByteCut &cut, const StoredLayout &to, uint64_t rank) const;
  void decodeScales();

  const LoadedModule *module = nullptr;
  const qlora_parameter *parameter = nullptr;
  qlora_parameter whole = {};
  HostMemory memory;         ///< of the largest one so far
  std::vector<float> scales; ///< of its blocks, where slices have no codes
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_WHOLETENSOR_H
