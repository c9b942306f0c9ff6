// SPDX-License-Identifier: MIT

// statvfs and posix_fallocate.

#include "runtime/Base/DiskSpace.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace qlora {

Status checkFreeSpace(const std::string &folder, uint64_t bytes) {
  struct statvfs disk {};
  // Some file systems of users' own say nothing.
  if (statvfs(folder.c_str(), &disk) != 0 || disk.f_blocks == 0)
    return Status::ok();
  // What is kept back is kept for the superuser.
  const uint64_t blocks = geteuid() == 0 ? disk.f_bfree : disk.f_bavail;
  const uint64_t free = blocks * disk.f_frsize;
  if (bytes <= free)
    return Status::ok();
  return Status::error(StatusCode::kResourceExhausted,
                       "the disk of '{}' is too full: {} of {} bytes are "
                       "missing",
                       folder, bytes - free, bytes);
}

Status reserveFile(const std::string &path, uint64_t bytes) {
  const int fd = open(
      path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  int error = fd < 0 ? errno : 0;
  if (fd >= 0) {
    error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
    close(fd);
  }
  if (error == 0)
    return Status::ok();
  return Status::error(StatusCode::kResourceExhausted,
                       "cannot reserve {} bytes for '{}': {}", bytes, path,
                       std::strerror(error));
}

} // namespace qlora
