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

/// Returns the parameter that `slice` is a part of, with the shape, block
/// and bytes of the complete tensor. Returns `slice` if it has no
/// `slices`. If a row of the shard is one block, assumes that a row of the
/// complete tensor is one block too.
qlora_parameter wholeOf(const qlora_parameter &slice);

/// Like wholeOf() for a parameter of `module`, but returns kDataLoss if the
/// complete tensor cannot be sharded like this (Slices.h). For a weight that is
/// quantized in its file, the file determines the block.
StatusOr<qlora_parameter> findWhole(const LoadedModule &module,
                                    const ParameterSources &sources,
                                    const qlora_parameter &slice);

/// Returns the sharded dimension. The result refers to `module` and `whole`.
SlicedDimension dimensionOf(const LoadedModule &module,
                            const qlora_parameter &slice,
                            const qlora_parameter &whole);

/// Loads tensors one after the other; each reuses the memory of the previous.
class WholeTensor {
public:
  /// Loads the complete tensor of parameter `of` of `module`.
  Status make(const LoadedModule &module, const ParameterSources &sources,
              const qlora_parameter &of);

  /// Returns the shard (arenaBytesOf() bytes) of rank `rank` in the group that
  /// holds the tensor. The result refers to this tensor's memory.
  ShardView cutFor(uint64_t rank) const;

private:
  /// Consecutive elements that are stored in `bytes` bytes, such as a block.
  struct Unit {
    int64_t elements, bytes;
  };
  ShardView pieceFor(uint64_t rank) const;
  ShardView sliceFor(uint64_t rank) const;
  /// Adds rank `rank`'s elements to `cut` at byte `at`. `from`: all elements.
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
