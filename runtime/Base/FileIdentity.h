// SPDX-License-Identifier: MIT

// What tells a file from another, or from what it was before, without reading
// it: for caches of what was made from files that are too large to hash at
// every start.
//
// Linux sets `changed` (ctime) whenever the content, the name or the owner
// changes, and no program can set it, so that restoring the modification time
// hides nothing. The device number is not in it: mounts and containers change
// it, and two files do not share an inode number, a size and two times to the
// nanosecond. A copy of a file is another file.
//
// Clocks of file systems are coarse: a file that is written twice within a
// tick looks the same. isSettled() says that the tick of the last change is
// over, so that whatever is read from now on is what the identity stands for.

#ifndef QLORA_RUNTIME_BASE_FILEIDENTITY_H
#define QLORA_RUNTIME_BASE_FILEIDENTITY_H

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

struct FileIdentity {
  /// The coarsest clock of a file system in use, FAT's.
  static constexpr std::chrono::nanoseconds kTick = std::chrono::seconds(2);

  uint64_t bytes = 0;
  uint64_t inode = 0;
  int64_t modified = 0; ///< nanoseconds since 1970
  int64_t changed = 0;  ///< the same

  /// Of an open file.
  static StatusOr<FileIdentity> of(int descriptor);
  /// Of what a path leads to now, links followed.
  static StatusOr<FileIdentity> at(const std::string &path);

  /// False too where the system has no times, or they are of the future.
  bool isSettled() const;
  bool operator==(const FileIdentity &) const = default;
};

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_FILEIDENTITY_H
