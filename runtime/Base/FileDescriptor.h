// SPDX-License-Identifier: MIT

// An owner of a file descriptor, and the identity of files.

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

/// Owns a file descriptor and closes it when destroyed. Movable.
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

  /// Fills `out` from byte `offset` of the file on. Returns kDataLoss if the
  /// file ends earlier or cannot be read. The caller adds the file's name.
  Status readAt(uint64_t offset, std::span<uint8_t> out) const;

private:
  int fd;
};

// Identifies a file and its content without reading it, for caches that are
// made from files too large to hash at every start.
//
// Linux sets `changed` (ctime) whenever the content, the name or the owner
// changes. Programs cannot set that time, so restoring the modification time
// does not hide a change. The device number is not included, since mounts and
// containers change it. In practice, no two files share an inode number, a size
// and two times to the nanosecond. A copy of a file has another identity.
//
// File systems have coarse clocks: a file that is written twice within a tick
// looks the same. If isSettled() is true, the tick of the last change is over,
// so data that is read from now on matches the identity.

struct FileIdentity {
  /// Timestamp resolution of FAT, the coarsest of the file systems in use.
  static constexpr std::chrono::nanoseconds kTick = std::chrono::seconds(2);

  uint64_t bytes = 0;
  uint64_t inode = 0;
  int64_t modified = 0; ///< nanoseconds since 1970
  int64_t changed = 0;  ///< nanoseconds since 1970

  /// Returns the identity of an open file.
  static StatusOr<FileIdentity> of(int descriptor);
  /// Returns the identity of the file at a path; follows links.
  static StatusOr<FileIdentity> at(const std::string &path);

  /// Whether the last change is more than kTick ago. False if the file system
  /// has no times, or if the times are in the future.
  bool isSettled() const;
  bool operator==(const FileIdentity &) const = default;
};

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_FILEDESCRIPTOR_H
