// SPDX-License-Identifier: MIT

// The cache and the shared memory, as one.

#include "runtime/Weights/FrozenBase.h"

#include <utility>

#include "runtime/Base/UserFiles.h"
#include "runtime/Weights/BaseKey.h"

namespace qlora {

/// Empty: the user has no cache folder.
static std::string folderOf(const BaseCacheRequest &request) {
  if (request.place != BaseCacheRequest::kUserCache)
    return request.place;
  const std::string cache = userCacheFolder();
  return cache.empty() ? "" : cache + "/bases";
}

void FrozenBase::remark(const Status &status) {
  if (!status.isOk())
    remarks.push_back(
        fmt::format("the quantised base is not kept for the next start: {}",
                    status.message()));
}

FileDescriptor FrozenBase::find(const LoadedModule &module,
                                const ModelFiles &model,
                                const BaseCacheRequest &request) {
  if (request.place == BaseCacheRequest::kNone || !quantizesBase(module))
    return FileDescriptor();
  const std::string folder = folderOf(request);
  if (folder.empty()) {
    remark(Status::error(StatusCode::kUnavailable,
                         "neither XDG_CACHE_HOME nor HOME is set; "
                         "--base-cache DIR says where"));
    return FileDescriptor();
  }
  if (Status settled = checkSettled(model); !settled.isOk()) {
    remark(settled);
    return FileDescriptor();
  }
  auto name = baseKey(module, model);
  if (!name.isOk()) {
    remark(name.status());
    return FileDescriptor();
  }
  key = *name;
  cache.emplace(folder, request.limit);
  auto file = cache->open(key, module.arenaBytes(QLORA_ARENA_FROZEN));
  if (!file.isOk()) {
    remarks.push_back(
        fmt::format("{}; the base is made again", file.status().message()));
    return FileDescriptor();
  }
  if (file->isOpen())
    mapped = cache->fileOf(key);
  return std::move(file).value();
}

StatusOr<FrozenBase> FrozenBase::open(const LoadedModule &module,
                                      const ModelFiles &model, RankGroup &group,
                                      const BaseCacheRequest &request) {
  FrozenBase base;
  QLORA_ASSIGN_OR_RETURN(base.arena,
                         group.shareFrozenArena(
                             module.arenaBytes(QLORA_ARENA_FROZEN),
                             [&] { return base.find(module, model, request); },
                             base.part));
  return base;
}

Status FrozenBase::seal(const ModelFiles &model) {
  QLORA_RETURN_IF_ERROR(arena.protect());
  if (isFilled() || key.empty())
    return Status::ok();
  if (Status unchanged = checkUnchanged(model); !unchanged.isOk()) {
    remark(unchanged);
    return Status::ok();
  }
  auto started = cache->write(key, arena.bytes());
  remark(started.status());
  if (started.isOk())
    writer = std::move(started).value();
  return Status::ok();
}

void FrozenBase::finish() {
  if (writer)
    remark(writer->finish());
  writer.reset();
}

std::vector<std::string> FrozenBase::takeRemarks() {
  return std::exchange(remarks, {});
}

} // namespace qlora
