// SPDX-License-Identifier: MIT

// A folder of the user's cache that is kept below a size: the files that were
// not used for the longest time go first. Any of them may be deleted at any
// time, by another run too; a file's modification time is its last use.

#ifndef QLORA_RUNTIME_SESSION_KEPTFILES_H
#define QLORA_RUNTIME_SESSION_KEPTFILES_H

#include <cstdint>
#include <string>

namespace qlora {

/// Deletes files NAME + `extension` of the folder until the others have at
/// most `limit` bytes, and what writers that were killed have left: files
/// NAME.part.* that nobody has written to for a day.
void keepRecentFiles(const std::string &folder, const std::string &extension,
                     uint64_t limit);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_KEPTFILES_H
