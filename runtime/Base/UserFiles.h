// SPDX-License-Identifier: MIT

// Small files that are read and written as a whole, the folder in which a
// user's are kept from run to run, what a folder has, and names of files for
// messages.

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

/// $XDG_CACHE_HOME/qlora, or ~/.cache/qlora without that variable; empty when
/// neither is known.
std::string userCacheFolder();

/// kNotFound, with the reason, where it cannot be read.
StatusOr<std::string> readWholeFile(const std::string &path);

/// A reader finds the old text or the new one (AtomicFile.h). Makes the folder.
Status replaceWholeFile(const std::string &path, std::string_view text,
                        AtomicFile::Flush flush = AtomicFile::Flush::kYes);

/// What is in a folder, sorted. An error is the system's reason alone, for a
/// caller to say of what; kNotFound where there is no such folder.
StatusOr<std::vector<std::filesystem::path>>
listFolder(const std::string &path);

/// `path`, which is in `folder` (empty: the current one), from the root and
/// without a slash at its end; empty stays so.
std::string absolutePath(const std::string &path,
                         const std::string &folder = "");

/// `path` as a user would write it here: relative, where it lies below the
/// current folder.
std::string shownPath(const std::string &path);

// Whether a file can be written where the user wants it, asked before the work
// that it is for.

/// That the folder of `path` exists, and that `path` itself is none.
Status checkOutputFile(const std::string &path);

/// An error that says how many bytes are missing where `folder` lies. What they
/// are for, and what else to do than to make room, is for the caller to say.
Status checkFreeSpace(const std::string &folder, uint64_t bytes);

// A folder of the user's cache that is kept near a size: the files that were
// not used for the longest time go first. A file's modification time is its
// last use; one of the last hour stays, because a run may be about to open it,
// so that a busy folder can be larger for a while.

/// Deletes files NAME + `extension` of the folder that were not used for an
/// hour: those that are larger than `limit`, and then the oldest, until the
/// others and `coming` bytes more are within it. Where `coming` alone is not,
/// none has to make room for it. What writers that were killed have left goes
/// too: files NAME.part.* that nobody has written to for a day.
void keepRecentFiles(const std::string &folder, const std::string &extension,
                     uint64_t limit, uint64_t coming);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_USERFILES_H
