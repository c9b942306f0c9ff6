// SPDX-License-Identifier: MIT

// Tensors of an arena as files have them: whole, whichever rank has which of
// their bytes.
//
//   adapter_model.safetensors   TRAINABLE; or model.safetensors
//   state.safetensors           STATE
//   residuals.safetensors       RESIDUAL, NAME [ranks, ...]: what each rank has
//                               left of its gradients where they are sent in
//                               fewer bits
//
// Ranks may have trainable parameters and optimizer states in pieces
// (ABI/module.h, `trained_pieces` and `update_pieces`); a tensor may lie across
// two pieces. Residuals differ on every rank. A file is read and written in
// windows of 4 MiB: what a window has of other ranks goes from rank to rank down
// to rank 0, which alone has the file, and from there to all. No rank holds more
// than streamBufferBytes() for it, whatever the size of the arenas.
//
// A file has whole tensors, so that a run resumes with another number of pieces.
// With as many ranks it has the same residuals. With fewer, rank r takes what
// the ranks r, r + N, ... had; with more, the additional ranks have none: the
// sum over all ranks stays the same.

#ifndef QLORA_RUNTIME_SESSION_ARENATENSORS_H
#define QLORA_RUNTIME_SESSION_ARENATENSORS_H

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

inline constexpr const char *kStateFile = "state.safetensors";
inline constexpr const char *kResidualsFile = "residuals.safetensors";

/// Fills `out` with bytes of a tensor, by its number, from byte `at` on.
using TensorSource = std::function<Status(size_t tensor, uint64_t at,
                                          std::span<uint8_t> out)>;

/// `module` outlives it.
class ArenaTensors {
public:
  /// TRAINABLE, STATE or RESIDUAL, in a run of `ranks` ranks; in the order of a
  /// file.
  ArenaTensors(const LoadedModule &module, qlora_arena_kind kind, int ranks);
  /// In the order of other tensors with the same names, such as those of a file
  /// with other types.
  void sortAs(std::span<const SafetensorsItem> items);

  /// Names, types and shapes; their `bytes` have sizes and no memory.
  std::vector<SafetensorsItem> items() const;
  uint64_t bytes() const { return starts.back(); }

  /// The tensors in a checkpoint's file. Residuals are added up for this run's
  /// ranks. An error names the file, the tensor and both shapes. `file` outlives
  /// the source.
  StatusOr<TensorSource> sourceFrom(const SafetensorsFile &file) const;
  /// All zero.
  static TensorSource zeros();
  /// Fills the arenas of all ranks with what rank 0 has from `source`, which the
  /// other ranks do not use. All ranks call it, between entries.
  Status restore(const TensorSource &source, Device &device,
                 RankGroup &group) const;

private:
  friend class ArenaReader;
  struct Tensor {
    const qlora_parameter *parameter;
    SafetensorsItem item;
    uint64_t piece; ///< bytes that each rank has of its range; 0: all of it
    uint64_t first; ///< byte of that range where it begins
  };
  /// Bytes that lie together in a file and in the arena of one rank.
  struct Part {
    size_t tensor;
    uint64_t at;     ///< byte of the tensor
    uint64_t place;  ///< byte of the window
    uint64_t local;  ///< byte of the arena
    uint64_t bytes;
    int owner;       ///< of the ranks that divide the arena
    bool isOfAll;    ///< the other ranks have it too
  };
  std::vector<Part> partsOf(uint64_t window) const;
  uint64_t windowBytes(uint64_t window) const;
  /// Those that divide the arena.
  Collectives &owners(RankGroup &group) const;
  Status checkTensor(const SafetensorsFile &file, const Tensor &tensor) const;

  const LoadedModule &module;
  const qlora_arena_kind kind;
  std::vector<Tensor> tensors;
  std::vector<uint64_t> starts; ///< in the bytes of all, and their end
};

/// The bytes of an arena's tensors one after the other, for the file that rank 0
/// writes. All ranks make one and call finish(), between entries.
class ArenaReader {
public:
  /// All of these outlive it.
  ArenaReader(const ArenaTensors &tensors, Device &device, RankGroup &group);
  /// Rank 0 alone: the next bytes.
  Status read(std::span<uint8_t> out);
  /// Sends what is still to be sent to rank 0, which drops what it has not read:
  /// a file that cannot be written must not keep the other ranks waiting. An
  /// error of a device or a rank is returned here too.
  Status finish();

private:
  Status fetch();
  Status fetchFrom(int owner, std::span<const ArenaTensors::Part> parts);

  const ArenaTensors &tensors;
  Device &device;
  RankGroup &group;
  const uint32_t arena;
  uint64_t next = 0;            ///< number of the window
  std::vector<uint8_t> window;  ///< of the file; on rank 0
  size_t given = 0;             ///< of the window
  std::vector<uint8_t> message; ///< what one rank has of it
  Status failed;
};

/// Host memory that saving, and restoring, takes of each of `ranks` ranks.
uint64_t streamBufferBytes(const LoadedModule &module, int ranks);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_ARENATENSORS_H
