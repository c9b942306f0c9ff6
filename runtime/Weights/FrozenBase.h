// SPDX-License-Identifier: MIT

// The frozen weights of a rank whose arenas are host memory: mapped from the
// cache of quantised bases (BaseFile.h) where an earlier run has left them,
// else filled by the ranks of the machine, of which the first then leaves them
// there. The cache saves time and nothing else: whatever is wrong with it is a
// remark, and the run goes on without.
//
// Ranks of a pipeline have the bases of their stages, which are kept each for
// itself. Ranks that hold a base in pieces or slices have other bytes each:
// memory of their own, and files of their own, which every one of them looks
// for and leaves. They are filled together (FrozenPieces.h), so files are
// mapped only where all ranks that hold a base together have theirs.
//
//   QLORA_ASSIGN_OR_RETURN(base, FrozenBase::open(module, model, group, {}));
//   device->load(module, &base->memory());
//   if (!base->isFilled()) fill this rank's base->share(), all ranks
//   barrier
//   QLORA_RETURN_IF_ERROR(base->seal(model));
//   train
//   base->finish();

#ifndef QLORA_RUNTIME_WEIGHTS_FROZENBASE_H
#define QLORA_RUNTIME_WEIGHTS_FROZENBASE_H

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/Device/FrozenArena.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Weights/BaseFile.h"
#include "runtime/Weights/ModelFiles.h"

namespace qlora {

/// Whether reading the frozen weights is work: one of them is quantised when
/// it is loaded. Keeping a base that is only copied would save nothing.
bool quantizesBase(const LoadedModule &module);

/// Ranks that hold a base together, in pieces or slices; they follow each
/// other. 1: each has it whole.
uint32_t holdersOf(const LoadedModule &module);

/// The name under which a quantised base is kept: a hash of all that decides
/// the bytes of the FROZEN arena, so that a cached one can only be right or
/// missing.
///
///   what comes out   the arena's size; of each weight in it the name, shape,
///                    dtype in the file and in the arena, quantisation, block,
///                    double quantisation and offset; what our quantiser makes
///                    of a sample; a version of ours, which is raised where
///                    loading gives other bytes in another way; of a base in
///                    pieces or slices their sizes and number, how they are
///                    cut, and which one it is
///   what goes in     of each file of the model folder its name, identity
///                    (FileDescriptor.h) and tensors, and which file a tensor
///                    is taken from
///
/// Hashing the weights would cost the very read that a cache is for, so a file
/// is known by its identity: a changed file is another one, whatever has been
/// done to its time; so is a copy, which is then read and quantised anew. Links
/// are followed: two snapshots of the Hugging Face cache that share a blob
/// share a base. The target, other ranks and threads change no byte and are
/// not in it. `piece`: the number of this rank among those that hold the base
/// together in pieces or slices.
StatusOr<std::string> baseKey(const LoadedModule &module,
                              const ModelFiles &model, uint32_t piece = 0);

/// kUnavailable, with the reason for people, where a file of the model was
/// written so lately that its identity does not tell (FileDescriptor.h). Asked
/// before the weights are read.
Status checkSettled(const ModelFiles &model);

/// kUnavailable where a file is not what it was when it was opened. Asked
/// after the weights were read.
Status checkUnchanged(const ModelFiles &model);

/// What the command line said of the cache.
struct BaseCacheRequest {
  /// A folder, kUserCache (`bases` in the user's cache folder) or kNone.
  std::string place = kUserCache;
  uint64_t limit = uint64_t{40} << 30; ///< bytes of all bases
  static constexpr const char *kUserCache = "auto";
  static constexpr const char *kNone = "none";
};

/// Movable before its memory is used; it outlives the device.
class FrozenBase {
public:
  /// All ranks call it.
  static StatusOr<FrozenBase> open(const LoadedModule &module,
                                   const ModelFiles &model, RankGroup &group,
                                   const BaseCacheRequest &request);

  FrozenArena &memory() { return arena; }
  const FillShare &share() const { return part; }
  /// By the file that is mapped, or by seal().
  bool isFilled() const { return arena.isFilled() || isSealed; }
  /// The file that is mapped; empty where the base was made in this run, and
  /// where it is whole on ranks other than the first of a machine.
  const std::string &mappedFile() const { return mapped; }

  /// All ranks have filled their shares: nobody writes any more, and a base
  /// that was made here starts to be written.
  Status seal(const ModelFiles &model);
  /// The end of a run that went well: the base is on disk, or a remark says
  /// why not.
  void finish();

  /// One line each since the last call.
  std::vector<std::string> takeRemarks();

private:
  FileDescriptor find(const LoadedModule &module, const ModelFiles &model,
                      const BaseCacheRequest &request, uint32_t piece = 0);
  Status openPiece(const LoadedModule &module, const ModelFiles &model,
                   RankGroup &group, const BaseCacheRequest &request);
  StatusOr<bool> agreeOnPieces(RankGroup &group, uint32_t holders,
                               bool hasFile);
  Status shareRemarks(RankGroup &group);
  void remark(const Status &status);

  std::optional<BaseCache> cache; ///< where this rank may find or leave it
  std::string key;                ///< empty: not to be left there
  uint64_t writers = 1; ///< ranks of this machine that leave one there
  std::string mapped;
  std::vector<std::string> remarks;
  FillShare part;
  FrozenArena arena;
  bool isSealed = false;
  std::unique_ptr<BaseWriter> writer; ///< reads the arena
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_FROZENBASE_H
