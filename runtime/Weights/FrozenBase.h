// SPDX-License-Identifier: MIT

// The frozen weights of a rank whose arenas are host memory: mapped from the
// cache of quantised bases (BaseCache.h) where an earlier run has left them,
// else filled by the ranks of the machine, of which the first then leaves them
// there. The cache saves time and nothing else: whatever is wrong with it is a
// remark, and the run goes on without.
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
#include "runtime/Weights/BaseCache.h"
#include "runtime/Weights/ModelFiles.h"

namespace qlora {

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
  bool isFilled() const { return arena.isFilled(); }
  /// The file that is mapped; empty where the base was made in this run, and
  /// on ranks other than the first of a machine.
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
                      const BaseCacheRequest &request);
  void remark(const Status &status);

  std::optional<BaseCache> cache; ///< where this rank may find or leave it
  std::string key;                ///< empty: not to be left there
  std::string mapped;
  std::vector<std::string> remarks;
  FillShare part;
  FrozenArena arena;
  std::unique_ptr<BaseWriter> writer; ///< reads the arena
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_FROZENBASE_H
