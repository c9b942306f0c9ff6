// SPDX-License-Identifier: MIT

// A complete frozen tensor in memory of this process, from which the fsdp, tp
// or ep shards of ranks are copied (FrozenShards.h).

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

/// Returns the complete tensor of a tp or ep shard: its shape, block and bytes;
/// the parameter itself if it has no `slices`. If a row of the shard is one
/// block, a row of the complete tensor is assumed to be one block too.
qlora_parameter wholeOf(const qlora_parameter &slice);

/// Like wholeOf() for a row of the module's table, but checks that the complete
/// tensor can be cut like this (Slices.h); if not, kDataLoss. For a weight that
/// is quantized in its file, the file determines the block.
StatusOr<qlora_parameter> findWhole(const LoadedModule &module,
                                    const ParameterSources &sources,
                                    const qlora_parameter &slice);

/// Returns the sharded dimension. It refers to the module and `whole`.
SlicedDimension dimensionOf(const LoadedModule &module,
                            const qlora_parameter &slice,
                            const qlora_parameter &whole);

/// Loads tensors one after the other; each reuses the memory of the previous.
class WholeTensor {
public:
  /// Loads the tensor; `of` is a row of the module's table.
  Status make(const LoadedModule &module, const ParameterSources &sources,
              const qlora_parameter &of);

  /// Returns the shard, arenaBytesOf() bytes, of rank `rank` in the group that
  /// holds the tensor. The result refers to this tensor.
  ShardView cutFor(uint64_t rank) const;

private:
  /// `elements` consecutive elements take `bytes` bytes together in memory.
  struct Unit {
    int64_t elements, bytes;
  };
  ShardView pieceFor(uint64_t rank) const;
  ShardView sliceFor(uint64_t rank) const;
  /// Adds a shard's elements to `cut`; the tensor's elements begin at `from`.
  void addElements(ShardView &cut, int64_t at, const uint8_t *from, Unit unit,
                   uint64_t rank) const;
  void addScales(ShardView &cut, const StoredLayout &to, uint64_t rank) const;
  void decodeScales();

  const LoadedModule *module = nullptr;
  const qlora_parameter *parameter = nullptr;
  qlora_parameter whole = {};
  HostMemory memory;         ///< as large as the largest tensor so far
  std::vector<float> scales; ///< decoded, one per block; or empty
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_WHOLETENSOR_H
