// SPDX-License-Identifier: MIT

// Reads and writes small files as a whole, lists folders, finds the user's
// cache folder, and formats file names for messages.

#ifndef QLORA_RUNTIME_BASE_USERFILES_H
#define QLORA_RUNTIME_BASE_USERFILES_H

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Returns $XDG_CACHE_HOME/qlora, or ~/.cache/qlora without that variable;
/// empty without both variables.
std::string userCacheFolder();

/// Reads a file. Returns kNotFound, with the reason, if that fails.
StatusOr<std::string> readWholeFile(const std::string &path);

/// Replaces a file atomically (AtomicFile.h). Creates the folder.
Status replaceWholeFile(const std::string &path, std::string_view text,
                        AtomicFile::Flush flush = AtomicFile::Flush::kYes);

/// Returns a folder's entries, sorted. An error has the system's reason without
/// the path, which the caller adds; kNotFound if there is no such folder.
StatusOr<std::vector<std::filesystem::path>>
listFolder(const std::string &path);

/// Returns the absolute path of `path` in `folder` (empty: the current folder),
/// without a slash at its end. An empty path stays empty.
std::string absolutePath(const std::string &path,
                         const std::string &folder = "");

/// Returns `path` for display: relative if it is below the current folder.
std::string shownPath(const std::string &path);

// Checks whether a file can be written, before the work for its content starts.

/// Checks that the folder of `path` exists, and that `path` is not a folder.
Status checkOutputFile(const std::string &path);

/// Returns an error with the number of missing bytes if fewer than `bytes` are
/// free on the disk of `folder`. The caller adds what needs the space.
Status checkFreeSpace(const std::string &folder, uint64_t bytes);

// A cache folder of limited size, from which the least recently used files are
// deleted first. A file's modification time is its last use. Files used in the
// last hour stay, because a run may be about to open them. So the folder can
// exceed the limit temporarily.

/// Deletes files NAME + `extension` that were not used for an hour: first those
/// larger than `limit`, then the oldest, until the remaining files plus
/// `coming` bytes fit. If `coming` alone exceeds `limit`, nothing is deleted
/// for it. Also deletes temporary files NAME.part.* older than a day.
void keepRecentFiles(const std::string &folder, const std::string &extension,
                     uint64_t limit, uint64_t coming);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_USERFILES_H
