// SPDX-License-Identifier: MIT

// The folder: finding, adding, making room.

#include "runtime/Weights/BaseCache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/Base/KeptFiles.h"
#include "runtime/Weights/BaseFile.h"

namespace qlora {

namespace fs = std::filesystem;

StatusOr<FileDescriptor> BaseCache::open(const std::string &key,
                                         uint64_t arenaBytes) const {
  const std::string path = fileOf(key);
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.isOpen() && errno == ENOENT)
    return file;
  if (!file.isOpen())
    return Status::error(StatusCode::kDataLoss, "cannot open '{}': {}", path,
                         std::strerror(errno));
  Status sound = verifyBase(file.get(), key, arenaBytes);
  if (!sound.isOk())
    return sound.withContext(fmt::format("'{}'", path));
  // Where the folder is read-only, nothing is deleted from it either.
  (void)futimens(file.get(), nullptr);
  return file;
}

Status BaseCache::makeRoom(uint64_t bytes) const {
  if (bytes > limit)
    return Status::error(StatusCode::kResourceExhausted,
                         "it has {} bytes, and --base-cache-limit is {}", bytes,
                         limit);
  keepRecentFiles(folder, ".base", limit, bytes);
  return Status::ok();
}

StatusOr<std::unique_ptr<BaseWriter>>
BaseCache::write(const std::string &key, std::span<const uint8_t> arena) const {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    return Status::error(StatusCode::kResourceExhausted,
                         "cannot create '{}': {}", folder, error.message());
  QLORA_RETURN_IF_ERROR(makeRoom(baseFileBytes(arena.size())));
  return BaseWriter::start(fileOf(key), key, arena);
}

} // namespace qlora
