// SPDX-License-Identifier: MIT

// Small files that are read and written as a whole, the folder in which a
// user's are kept from run to run, what a folder has, and names of files for
// messages.

#ifndef QLORA_RUNTIME_BASE_USERFILES_H
#define QLORA_RUNTIME_BASE_USERFILES_H

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

/// `path` as a user would write it here: relative, where it lies below the
/// current folder.
std::string shownPath(const std::string &path);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_USERFILES_H
