// SPDX-License-Identifier: MIT

// Opens, writes, flushes and renames the file, and flushes its folder.

#include "runtime/Base/AtomicFile.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

namespace qlora {

Status AtomicFile::failure(std::string_view what, int error) const {
  const bool isFull = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return Status::error(
      isFull ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
      "cannot {} '{}': {}; what was there before is unchanged", what, target,
      std::strerror(error));
}

StatusOr<AtomicFile> AtomicFile::create(const std::string &path) {
  // A process id would not be unique in a folder that several machines share.
  std::random_device random;
  while (true) {
    const std::string part = fmt::format("{}.part.{:08x}", path, random());
    FileDescriptor file(
        ::open(part.c_str(),
               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    const int error = file.isOpen() ? 0 : errno;
    AtomicFile made(std::move(file), path, part);
    if (error == 0)
      return made;
    if (error != EEXIST)
      return made.failure("write", error);
  }
}

AtomicFile::~AtomicFile() {
  if (file.isOpen())
    unlink(part.c_str());
}

Status AtomicFile::reserve(uint64_t bytes, Reserve how) {
  if (bytes == 0) // the system rejects size 0
    return Status::ok();
  const auto size = static_cast<off_t>(bytes);
  int error = 0;
  if (how == Reserve::kEach)
    error = posix_fallocate(file.get(), 0, size);
  else if (fallocate(file.get(), 0, 0, size) != 0)
    error = errno == EOPNOTSUPP || errno == ENOSYS ? 0 : errno;
  if (error == 0)
    return Status::ok();
  return Status::error(StatusCode::kResourceExhausted,
                       "cannot reserve {} bytes for '{}': {}", bytes, target,
                       std::strerror(error));
}

Status AtomicFile::write(std::string_view bytes) {
  QLORA_RETURN_IF_ERROR(
      writeAt(written, {reinterpret_cast<const uint8_t *>(bytes.data()),
                        bytes.size()}));
  written += bytes.size();
  return Status::ok();
}

Status AtomicFile::writeAt(uint64_t offset, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = pwrite(file.get(), bytes.data(), bytes.size(),
                               static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR)
      continue;
    if (put < 0)
      return failure("write", errno);
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return Status::ok();
}

Status AtomicFile::commit(Flush flush) {
  if (flush == Flush::kYes && fsync(file.get()) != 0)
    return failure("flush", errno);
  // Some network file systems report a failed write only here.
  int error = close(file.release()) != 0 ? errno : 0;
  if (error == 0 && std::rename(part.c_str(), target.c_str()) != 0)
    error = errno;
  if (error != 0) {
    unlink(part.c_str());
    return failure("write", error);
  }
  if (flush == Flush::kYes)
    flushFolder(std::filesystem::path(target).parent_path().string());
  return Status::ok();
}

bool AtomicFile::isPart(std::string_view path) {
  constexpr std::string_view kMark = ".part.";
  constexpr size_t kDigits = 8;
  if (path.size() < kMark.size() + kDigits)
    return false;
  const std::string_view end = path.substr(path.size() - kDigits);
  return path.substr(0, path.size() - kDigits).ends_with(kMark) &&
         end.find_first_not_of("0123456789abcdef") == end.npos;
}

bool AtomicFile::isThere() const { return access(part.c_str(), F_OK) == 0; }

void flushFolder(const std::string &folder) {
  const FileDescriptor opened(::open(folder.empty() ? "." : folder.c_str(),
                                     O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Ignore errors: some file systems cannot flush a folder.
  if (opened.isOpen())
    (void)fsync(opened.get());
}

} // namespace qlora
