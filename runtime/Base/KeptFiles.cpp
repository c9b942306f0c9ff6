// SPDX-License-Identifier: MIT

// Listing a cache's files by their last use, and deleting the oldest.

#include "runtime/Base/KeptFiles.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <tuple>
#include <vector>

namespace qlora {

namespace fs = std::filesystem;

/// After that, whoever wrote a *.part.* file is taken to be gone.
static constexpr auto kAbandoned = std::chrono::hours(24);
/// After that, no run is between finding a file and opening it.
static constexpr auto kInUse = std::chrono::hours(1);

namespace {
struct KeptFile {
  fs::path path;
  uint64_t bytes = 0;
  fs::file_time_type used;
};
} // namespace

/// The least recently used first. Abandoned parts go.
static std::vector<KeptFile> keptFiles(const std::string &folder,
                                       const std::string &extension) {
  std::vector<KeptFile> kept;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error);
       entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path &path = entry->path();
    std::error_code gone; // Another run may just have deleted it.
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
