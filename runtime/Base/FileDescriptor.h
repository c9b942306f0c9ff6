// SPDX-License-Identifier: MIT

// A descriptor of the system that closes itself, and what tells files apart.

#ifndef QLORA_RUNTIME_BASE_FILEDESCRIPTOR_H
#define QLORA_RUNTIME_BASE_FILEDESCRIPTOR_H

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "runtime/Base/Status.h"

namespace qlora {

/// Owns a descriptor of the system; closed when destroyed. Movable.
class FileDescriptor {
public:
  explicit FileDescriptor(int fd = -1) : fd(fd) {}
  FileDescriptor(FileDescriptor &&other) noexcept
      : fd(std::exchange(other.fd, -1)) {}
  FileDescriptor &operator=(FileDescriptor &&other) noexcept {
    FileDescriptor closed(std::exchange(fd, std::exchange(other.fd, -1)));
    return *this;
  }
  ~FileDescriptor() {
    if (fd >= 0)
      close(fd);
  }

  int get() const { return fd; }
  bool isOpen() const { return fd >= 0; }
  int release() { return std::exchange(fd, -1); }

  /// All of `out`, from a byte of the file on; kDataLoss, which says what
  /// happened to "it", where the file ends before or cannot be read.
  Status readAt(uint64_t offset, std::span<uint8_t> out) const;

private:
  int fd;
};

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

#endif // QLORA_RUNTIME_BASE_FILEDESCRIPTOR_H
