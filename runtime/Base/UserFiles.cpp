// SPDX-License-Identifier: MIT

// Reading, replacing, listing, and finding the folder.

#include "runtime/Base/UserFiles.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace qlora {

namespace fs = std::filesystem;

std::string userCacheFolder() {
  // The compiler's cache is in the same place (KernelCache.h).
  if (const char *cache = std::getenv("XDG_CACHE_HOME"); cache && *cache)
    return (fs::path(cache) / "qlora").string();
  if (const char *home = std::getenv("HOME"); home && *home)
    return (fs::path(home) / ".cache" / "qlora").string();
  return "";
}

StatusOr<std::string> readWholeFile(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // An empty file sets the stream's fail bit, which is no failure; a folder
  // sets the bad one.
  if (!file || (file.peek() != EOF && !(text << file.rdbuf())) || file.bad())
    return Status::error(StatusCode::kNotFound, "cannot read '{}': {}", path,
                         std::strerror(errno));
  return text.str();
}

Status replaceWholeFile(const std::string &path, std::string_view text,
                        AtomicFile::Flush flush) {
  std::error_code ignored; // The file then says why it cannot be written.
  if (const fs::path folder = fs::path(path).parent_path(); !folder.empty())
    fs::create_directories(folder, ignored);
  QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  QLORA_RETURN_IF_ERROR(file.write(text));
  return file.commit(flush);
}

StatusOr<std::vector<fs::path>> listFolder(const std::string &path) {
  std::vector<fs::path> entries;
  std::error_code error;
  // No range-for: the ++ that it calls throws.
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

std::string shownPath(const std::string &path) {
  std::error_code ignored;
  const std::string near = fs::proximate(path, ignored).string();
  return near.empty() || near.starts_with("..") ? path : near;
}

} // namespace qlora
