// SPDX-License-Identifier: MIT

// Reads, replaces and lists files; deletes the oldest files of a cache.

#include "runtime/Base/UserFiles.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>
#include <vector>

#include "runtime/Base/HubReference.h"

namespace qlora {

namespace fs = std::filesystem;

std::string userCacheFolder() {
  // The compiler's cache is in the same folder (KernelCache.h).
  if (const char *cache = std::getenv("XDG_CACHE_HOME"); cache && *cache)
    return (fs::path(cache) / "qlora").string();
  if (const char *home = std::getenv("HOME"); home && *home)
    return (fs::path(home) / ".cache" / "qlora").string();
  return "";
}

StatusOr<std::string> readWholeFile(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // Test for an empty file with peek(): it is valid, but << would fail. Reading
  // a folder sets the bad bit.
  if (!file || (file.peek() != EOF && !(text << file.rdbuf())) || file.bad())
    return Status::notFound("cannot read '{}': {}", path, std::strerror(errno));
  return text.str();
}

Status replaceWholeFile(const std::string &path, std::string_view text,
                        AtomicFile::Flush flush) {
  std::error_code ignored; // Creating the file reports the error.
  if (const fs::path folder = fs::path(path).parent_path(); !folder.empty())
    fs::create_directories(folder, ignored);
  QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  QLORA_RETURN_IF_ERROR(file.write(text));
  return file.commit(flush);
}

StatusOr<std::vector<fs::path>> listFolder(const std::string &path) {
  std::vector<fs::path> entries;
  std::error_code error;
  // Do not use a range-based for loop: its increment throws on errors.
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error))
    entries.push_back(entry->path());
  if (error)
    return Status(error == std::errc::no_such_file_or_directory
                      ? StatusCode::kNotFound
                      : StatusCode::kUnavailable,
                  error.message());
  std::ranges::sort(entries);
  return entries;
}

std::string absolutePath(const std::string &path, const std::string &folder) {
  if (path.empty() || isHubReference(path)) // which is not a path
    return path;
  fs::path full = fs::path(folder) / path;
  std::error_code ignored;
  fs::path absolute = fs::absolute(full, ignored);
  fs::path normal = absolute.lexically_normal();
  // "model/" and "model" are the same folder.
  if (!normal.has_filename() && normal.has_parent_path() &&
      normal != normal.root_path())
    normal = normal.parent_path();
  return normal.string();
}

std::string shownPath(const std::string &path) {
  if (isHubReference(path))
    return path;
  std::error_code ignored;
  const std::string near = fs::proximate(path, ignored).string();
  return near.empty() || near.starts_with("..") ? path : near;
}

Status checkOutputFile(const std::string &path) {
  std::error_code ignored;
  const fs::path file(path);
  if (fs::is_directory(file, ignored))
    return Status::invalid(
        "cannot write '{}': it is a folder; name a file in it", path);
  const fs::path folder = file.parent_path();
  if (folder.empty() || fs::is_directory(folder, ignored))
    return Status::ok();
  return Status::invalid(
      "cannot write '{}': there is no folder '{}'; create it", path,
      folder.string());
}

Status checkFreeSpace(const std::string &folder, uint64_t bytes) {
  struct statvfs disk {};
  // Some user-space file systems report no size.
  if (statvfs(folder.c_str(), &disk) != 0 || disk.f_blocks == 0)
    return Status::ok();
  // Reserved blocks are available to the superuser only.
  const uint64_t blocks = geteuid() == 0 ? disk.f_bfree : disk.f_bavail;
  const uint64_t free = blocks * disk.f_frsize;
  if (bytes <= free)
    return Status::ok();
  return Status::error(StatusCode::kResourceExhausted,
                       "the disk of '{}' lacks {} of {} bytes; free some space",
                       folder, bytes - free, bytes);
}

/// Age at which the writer of a *.part.* file is assumed dead.
static constexpr auto kAbandoned = std::chrono::hours(24);
/// Files used within this time are kept, because a run may be opening them.
static constexpr auto kInUse = std::chrono::hours(1);

namespace {
struct KeptFile {
  fs::path path;
  uint64_t bytes = 0;
  fs::file_time_type used;
};
} // namespace

/// Returns the files of a cache, the least recently used first. Deletes
/// temporary files of killed writers.
static std::vector<KeptFile> keptFiles(const std::string &folder,
                                       const std::string &extension) {
  std::vector<KeptFile> kept;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error);
       entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path &path = entry->path();
    std::error_code gone; // an error if another run has just deleted the file
    KeptFile file{path, entry->file_size(gone), {}};
    if (!gone)
      file.used = entry->last_write_time(gone);
    if (gone)
      continue;
    const bool isPart = path.stem().extension() == ".part";
    if (isPart && file.used + kAbandoned < fs::file_time_type::clock::now())
      fs::remove(path, gone);
    else if (path.extension() == extension)
      kept.push_back(file);
  }
  std::sort(kept.begin(), kept.end(), [](const KeptFile &a, const KeptFile &b) {
    return std::tie(a.used, a.path) < std::tie(b.used, b.path);
  });
  return kept;
}

void keepRecentFiles(const std::string &folder, const std::string &extension,
                     uint64_t limit, uint64_t coming) {
  const std::vector<KeptFile> kept = keptFiles(folder, extension);
  uint64_t total = coming <= limit ? coming : 0;
  for (const KeptFile &file : kept)
    total += file.bytes <= limit ? file.bytes : 0;
  const auto hourAgo = fs::file_time_type::clock::now() - kInUse;
  for (const KeptFile &file : kept) {
    const bool isTooLarge = file.bytes > limit;
    if (file.used > hourAgo || (total <= limit && !isTooLarge))
      continue;
    std::error_code ignored;
    fs::remove(file.path, ignored);
    total -= isTooLarge ? 0 : file.bytes;
  }
}

} // namespace qlora
