// SPDX-License-Identifier: MIT

// A folder of the user's cache that is kept near a size: the files that were
// not used for the longest time go first. A file's modification time is its
// last use; one of the last hour stays, because a run may be about to open it,
// so that a busy folder can be larger for a while.

#ifndef QLORA_RUNTIME_BASE_KEPTFILES_H
#define QLORA_RUNTIME_BASE_KEPTFILES_H

#include <cstdint>
#include <string>

namespace qlora {

/// Deletes files NAME + `extension` of the folder that were not used for an
/// hour: those that are larger than `limit`, and then the oldest, until the
/// others and `coming` bytes more are within it. Where `coming` alone is not,
/// none has to make room for it. What writers that were killed have left goes
/// too: files NAME.part.* that nobody has written to for a day.
void keepRecentFiles(const std::string &folder, const std::string &extension,
                     uint64_t limit, uint64_t coming);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_KEPTFILES_H
