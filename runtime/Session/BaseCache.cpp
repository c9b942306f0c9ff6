// SPDX-License-Identifier: MIT

// The folder: finding, adding, making room.

#include "runtime/Session/BaseCache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <vector>

#include "runtime/Session/BaseFile.h"

namespace qlora {

namespace fs = std::filesystem;

/// After that, whoever wrote a *.part.* file is taken to be gone.
static constexpr auto kAbandoned = std::chrono::hours(24);

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

namespace {
struct KeptFile {
  fs::path path;
  uint64_t bytes = 0;
  fs::file_time_type used;
};
} // namespace

/// The bases of a folder, the least recently used first. Files that a killed
/// run has left go.
static std::vector<KeptFile> keptFiles(const std::string &folder) {
  std::vector<KeptFile> kept;
  std::error_code error;
  for (const fs::directory_entry &entry :
       fs::directory_iterator(folder, error)) {
    const fs::path &path = entry.path();
    const KeptFile file{path, entry.file_size(error),
                        entry.last_write_time(error)};
    if (error)
      continue; // Another run has just deleted it.
    const bool isPart = path.stem().extension() == ".part";
    if (isPart && file.used + kAbandoned < fs::file_time_type::clock::now())
      fs::remove(path, error);
    else if (path.extension() == ".base")
      kept.push_back(file);
  }
  std::sort(kept.begin(), kept.end(), [](const KeptFile &a, const KeptFile &b) {
    return std::tie(a.used, a.path) < std::tie(b.used, b.path);
  });
  return kept;
}

Status BaseCache::makeRoom(uint64_t bytes) const {
  if (bytes > limit)
    return Status::error(StatusCode::kResourceExhausted,
                         "it has {} bytes, and --base-cache-limit is {}", bytes,
                         limit);
  const std::vector<KeptFile> kept = keptFiles(folder);
  uint64_t total = 0;
  for (const KeptFile &file : kept)
    total += file.bytes;
  for (const KeptFile &file : kept) {
    if (total <= limit - bytes)
      break;
    std::error_code ignored;
    fs::remove(file.path, ignored);
    total -= file.bytes;
  }
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
