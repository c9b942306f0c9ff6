// SPDX-License-Identifier: MIT

// Listing a cache's files by their last use, and deleting the oldest.

#include "runtime/Session/KeptFiles.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <tuple>
#include <vector>

namespace qlora {

namespace fs = std::filesystem;

/// After that, whoever wrote a *.part.* file is taken to be gone.
static constexpr auto kAbandoned = std::chrono::hours(24);

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
    else if (path.extension() == extension)
      kept.push_back(file);
  }
  std::sort(kept.begin(), kept.end(), [](const KeptFile &a, const KeptFile &b) {
    return std::tie(a.used, a.path) < std::tie(b.used, b.path);
  });
  return kept;
}

void keepRecentFiles(const std::string &folder, const std::string &extension,
                     uint64_t limit) {
  const std::vector<KeptFile> kept = keptFiles(folder, extension);
  uint64_t total = 0;
  for (const KeptFile &file : kept)
    total += file.bytes;
  for (const KeptFile &file : kept) {
    if (total <= limit)
      break;
    std::error_code ignored;
    fs::remove(file.path, ignored);
    total -= file.bytes;
  }
}

} // namespace qlora
