// SPDX-License-Identifier: MIT

// TCP sockets as values: a descriptor that closes itself, and blocking reads
// and writes of whole buffers with a deadline.

#ifndef QLORA_RUNTIME_DEVICE_SOCKET_H
#define QLORA_RUNTIME_DEVICE_SOCKET_H

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "runtime/Core/Status.h"

namespace qlora {

/// Owns a descriptor of the system; closed when destroyed. Movable.
class FileDescriptor {
public:
  explicit FileDescriptor(int fd = -1) : fd(fd) {}
  FileDescriptor(FileDescriptor &&other) noexcept
      : fd(std::exchange(other.fd, -1)) {}
  FileDescriptor &operator=(FileDescriptor &&other) noexcept;
  ~FileDescriptor();

  int get() const { return fd; }
  bool isOpen() const { return fd >= 0; }
  int release() { return std::exchange(fd, -1); }

private:
  int fd;
};

/// Listens on `host` (a name or address; empty: every interface). Port 0:
/// any free one; see portOf().
StatusOr<FileDescriptor> listenOn(const std::string &host, int port);

/// Connects, trying again until `timeout` has passed: the other side may not
/// have started yet.
StatusOr<FileDescriptor> connectTo(const std::string &host, int port,
                                   std::chrono::milliseconds timeout);

/// The port that a listening socket got.
StatusOr<int> portOf(const FileDescriptor &socket);

/// The numeric address of this machine on a connected socket.
StatusOr<std::string> localAddressOf(const FileDescriptor &socket);

/// From now on, a read or write that makes no progress for so long fails.
/// Zero: never.
Status setTimeout(const FileDescriptor &socket,
                  std::chrono::milliseconds timeout);

/// All of the bytes, or an error (kAborted: the other side closed).
Status sendAll(const FileDescriptor &socket, const void *data, size_t bytes);
Status receiveAll(const FileDescriptor &socket, void *data, size_t bytes);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_SOCKET_H
