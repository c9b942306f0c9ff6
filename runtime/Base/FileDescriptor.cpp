// SPDX-License-Identifier: MIT

// Reads with pread, and identifies files with stat.

#include "runtime/Base/FileDescriptor.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace qlora {

Status FileDescriptor::readAt(uint64_t offset, std::span<uint8_t> out) const {
  while (!out.empty()) {
    const ssize_t got =
        pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return Status::dataLoss("cannot read it: {}", std::strerror(errno));
    if (got == 0)
      return Status::dataLoss("it ends at byte {}", offset);
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return Status::ok();
}

static int64_t nanosecondsOf(const timespec &time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

static FileIdentity identityOf(const struct stat &info) {
  return {static_cast<uint64_t>(info.st_size), info.st_ino,
          nanosecondsOf(info.st_mtim), nanosecondsOf(info.st_ctim)};
}

StatusOr<FileIdentity> FileIdentity::of(int descriptor) {
  struct stat info {};
  if (fstat(descriptor, &info) != 0)
    return Status::unavailable("cannot stat a file: {}", std::strerror(errno));
  return identityOf(info);
}

StatusOr<FileIdentity> FileIdentity::at(const std::string &path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0)
    return Status::notFound("cannot stat '{}': {}", path, std::strerror(errno));
  return identityOf(info);
}

bool FileIdentity::isSettled() const {
  const int64_t now = std::chrono::nanoseconds(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  return changed > 0 && std::max(modified, changed) + kTick.count() < now;
}

} // namespace qlora
