// SPDX-License-Identifier: MIT

// A descriptor of the system that closes itself.

#ifndef QLORA_RUNTIME_BASE_FILEDESCRIPTOR_H
#define QLORA_RUNTIME_BASE_FILEDESCRIPTOR_H

#include <unistd.h>

#include <utility>

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

private:
  int fd;
};


} // namespace qlora

#endif // QLORA_RUNTIME_BASE_FILEDESCRIPTOR_H
