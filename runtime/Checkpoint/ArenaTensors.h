// SPDX-License-Identifier: MIT

// Reads and writes whole tensors of an arena, however their bytes are
// distributed over the ranks.
//
//   adapter_model.safetensors   TRAINABLE (full fine-tuning: model.safetensors)
//   state.safetensors           STATE
//   residuals.safetensors       RESIDUAL, NAME [ranks, ...]: the quantization
//                               error of each rank's compressed gradients
//
// Trainable parameters and optimizer states may be fsdp shards (ABI/module.h,
// axes zero2 and zero1); a tensor may span two shards.
// Residuals differ on every rank. Only rank 0 accesses the files, in windows of
// 4 MiB. To save a window, the other ranks pass their bytes from rank to rank
// down to rank 0. To load a window, rank 0 sends it to all ranks. Each rank
// needs at most streamBufferBytes() for this, however large the arenas are.
//
// Files hold whole tensors, so a run can resume with another number of shards.
// With the same number of ranks, residuals are unchanged. With fewer, rank r
// takes the residuals of ranks r, r + N, ...; with more, the additional ranks
// start at zero. The sum over all ranks stays the same.

#ifndef QLORA_RUNTIME_CHECKPOINT_ARENATENSORS_H
#define QLORA_RUNTIME_CHECKPOINT_ARENATENSORS_H

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

inline constexpr const char *kStateFile = "state.safetensors";
inline constexpr const char *kResidualsFile = "residuals.safetensors";

/// Fills `out` with bytes of tensor number `tensor`, starting at byte `at`.
using TensorSource = std::function<Status(size_t tensor, uint64_t at,
                                          std::span<uint8_t> out)>;

/// The tensors of an arena. `module` must outlive this object.
class ArenaTensors {
public:
  /// Lists the tensors of TRAINABLE, STATE or RESIDUAL in file order.
  ArenaTensors(const LoadedModule &module, qlora_arena_kind kind, int ranks);
  /// Sorts the tensors in the order of `items`, which must have the same names.
  /// A file's dtypes determine its order, and they may differ from the arena's.
  void sortAs(std::span<const SafetensorsItem> items);

  /// Returns names, dtypes and shapes. `bytes` have sizes and no memory.
  std::vector<SafetensorsItem> items() const;
  uint64_t bytes() const { return starts.back(); }

  /// Returns a source that reads a checkpoint's file. Residuals are summed for
  /// this run's number of ranks. Errors name the file, the tensor and both
  /// shapes. `file` must outlive the source.
  StatusOr<TensorSource> sourceFrom(const SafetensorsFile &file) const;
  static TensorSource zeros();
  /// Fills the arenas of all ranks from rank 0's `source`; the other ranks
  /// ignore theirs. All ranks call it, between entries.
  Status restore(const TensorSource &source, Device &device,
                 RankGroup &group) const;

private:
  friend class ArenaReader;
  struct Tensor {
    const qlora_parameter *parameter;
    SafetensorsItem item;
    uint64_t piece; ///< bytes of a rank's fsdp shard; 0: not sharded
    /// First byte of the tensor in the concatenated shards of all ranks.
    uint64_t first;
  };
  /// A byte range that is contiguous in the file and in one rank's arena.
  struct Part {
    size_t tensor;
    uint64_t at;     ///< first byte in the tensor
    uint64_t place;  ///< first byte in the window
    uint64_t local;  ///< first byte in the arena
    uint64_t bytes;
    int owner; ///< index among the ranks that shard the arena
    bool isOfAll;    ///< every rank has these bytes
  };
  std::vector<Part> partsOf(uint64_t window) const;
  uint64_t windowBytes(uint64_t window) const;
  /// Returns the collectives of the ranks that shard the arena.
  Collectives &owners(RankGroup &group) const;
  Status checkTensor(const SafetensorsFile &file, const Tensor &tensor) const;

  const LoadedModule &module;
  const qlora_arena_kind kind;
  std::vector<Tensor> tensors;
  std::vector<uint64_t> starts; ///< first byte of each tensor; last: the total
};

/// Streams the tensors of an arena to the file that rank 0 writes. Every rank
/// creates a reader and calls finish(), between entries.
class ArenaReader {
public:
  /// All arguments must outlive this object.
  ArenaReader(const ArenaTensors &tensors, Device &device, RankGroup &group);
  /// Reads the next bytes of the tensors. Only for rank 0.
  Status read(std::span<uint8_t> out);
  /// Sends the remaining bytes to rank 0, which drops them, so that a failed
  /// write on rank 0 does not block the other ranks. Returns errors of the
  /// device and of other ranks.
  Status finish();

private:
  Status fetch();
  Status fetchFrom(int owner, std::span<const ArenaTensors::Part> parts);

  const ArenaTensors &tensors;
  Device &device;
  RankGroup &group;
  const uint32_t arena;
  uint64_t next = 0;            ///< index of the next window
  std::vector<uint8_t> window;  ///< bytes of the current window, on rank 0
  size_t given = 0; ///< bytes of the window already returned by read()
  std::vector<uint8_t> message; ///< one rank's bytes of the window
  Status failed;
};

/// Returns the host bytes that each of `ranks` ranks needs to save or restore.
uint64_t streamBufferBytes(const LoadedModule &module, int ranks);

} // namespace qlora

#endif // QLORA_RUNTIME_CHECKPOINT_ARENATENSORS_H
