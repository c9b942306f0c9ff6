// SPDX-License-Identifier: MIT

// A whole frozen tensor in memory of this process, from which the fsdp, tp or
// ep shards of ranks are cut (FrozenShards.h).

#ifndef QLORA_RUNTIME_WEIGHTS_WHOLETENSOR_H
#define QLORA_RUNTIME_WEIGHTS_WHOLETENSOR_H

#include <cstdint>
#include <vector>

#include "runtime/Base/HostMemory.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Weights/Parameters.h"
#include "runtime/Weights/ShardView.h"
#include "runtime/Weights/Slices.h"

namespace qlora {

/// Returns the whole tensor of a tp or ep shard: its shape, block and bytes;
/// the parameter itself if it has no `slices`. If a row of the shard is one
/// block, a row of the whole is taken to be one too.
qlora_parameter wholeOf(const qlora_parameter &slice);

/// Like wholeOf() for a row of the module's table, but checked: kDataLoss if
/// the whole has no such shards (Slices.h). For a weight that its file has
/// quantised, the file determines the block.
StatusOr<qlora_parameter> findWhole(const LoadedModule &module,
                                    const ParameterSources &sources,
                                    const qlora_parameter &slice);

/// Returns how `whole` is cut. The module and `whole` must outlive the result.
SlicedDimension dimensionOf(const LoadedModule &module,
                            const qlora_parameter &slice,
                            const qlora_parameter &whole);

/// Reuses its memory for the next tensor.
class WholeTensor {
public:
  /// Loads the tensor; `of` is a row of the module's table.
  Status make(const LoadedModule &module, const ParameterSources &sources,
              const qlora_parameter &of);

  /// Returns the shard of rank `rank` of the group that holds the tensor, of
  /// arenaBytesOf() bytes. The cut refers to this tensor.
  ShardView cutFor(uint64_t rank) const;

private:
  /// The unit of counting: `elements` that take `bytes` together.
  struct Unit {
    int64_t elements, bytes;
  };
  ShardView pieceFor(uint64_t rank) const;
  ShardView sliceFor(uint64_t rank) const;
  /// Adds the elements of a shard; the whole has its units from `from` on.
  void addElements(ShardView &cut, int64_t at, const uint8_t *from, Unit unit,
                   uint64_t rank) const;
  void addScales(ShardView &cut, const StoredLayout &to, uint64_t rank) const;
  void decodeScales();

  const LoadedModule *module = nullptr;
  const qlora_parameter *parameter = nullptr;
  qlora_parameter whole = {};
  HostMemory memory;         ///< of the largest tensor so far
  std::vector<float> scales; ///< one per block; used if shards have no codes
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_WHOLETENSOR_H
