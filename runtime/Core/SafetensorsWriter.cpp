// SPDX-License-Identifier: MIT

// Writing of safetensors files: the reference implementation's order and
// padding, through a sibling temporary file and a rename.

#include "runtime/Core/Safetensors.h"
#include "runtime/Core/SafetensorsHeader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace qlora {

namespace {
/// A temporary file beside `path`; removed unless committed.
class SiblingFile {
public:
  static StatusOr<SiblingFile> create(const std::string &path) {
    // One writer per process and path; a remnant of a killed process with
    // our number is overwritten.
    std::string name = fmt::format("{}.{}.tmp", path, getpid());
    const int fd =
        open(name.c_str(),
             O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
      return Status::error(StatusCode::kUnavailable,
                           "cannot write beside '{}': {}", path,
                           std::strerror(errno));
    return SiblingFile(fd, std::move(name), path);
  }

  SiblingFile(SiblingFile &&other) noexcept
      : fd(std::exchange(other.fd, -1)), name(std::move(other.name)),
        path(std::move(other.path)) {}
  SiblingFile &operator=(SiblingFile &&) = delete;
  ~SiblingFile() {
    if (fd < 0)
      return;
    close(fd);
    unlink(name.c_str());
  }

  Status write(const void *data, size_t bytes) {
    const auto *cursor = static_cast<const char *>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(fd, cursor, bytes);
      if (written < 0 && errno == EINTR)
        continue;
      if (written < 0)
        return failure("write");
      cursor += written;
      bytes -= static_cast<size_t>(written);
    }
    return Status::ok();
  }

  /// Puts the file in place of `path`. Flushed first, so that a crash of the
  /// machine cannot leave an empty file under the old name.
  Status commit() {
    if (fsync(fd) != 0)
      return failure("flush");
    const int closed = close(fd);
    fd = -1;
    if (closed != 0 || rename(name.c_str(), path.c_str()) != 0) {
      Status status = failure("finish");
      unlink(name.c_str());
      return status;
    }
    return Status::ok();
  }

private:
  SiblingFile(int fd, std::string name, std::string path)
      : fd(fd), name(std::move(name)), path(std::move(path)) {}

  Status failure(std::string_view what) const {
    const int code = errno;
    const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
    return Status::error(full ? StatusCode::kResourceExhausted
                              : StatusCode::kUnavailable,
                         "cannot {} '{}': {}; what was there before is "
                         "unchanged",
                         what, path, std::strerror(code));
  }

  int fd;
  std::string name;
  std::string path;
};
} // namespace

/// Tensors as they will stand in the file, offsets set.
static std::vector<SafetensorsTensor>
layOut(const std::vector<SafetensorsItem> &items) {
  std::vector<SafetensorsTensor> tensors;
  uint64_t offset = 0;
  for (const SafetensorsItem &item : items) {
    tensors.push_back({item.name, item.dtype, item.shape, offset,
                       offset + item.bytes.size()});
    offset += item.bytes.size();
  }
  return tensors;
}

Status writeSafetensors(const std::string &path,
                        std::vector<SafetensorsItem> items,
                        const std::map<std::string, std::string> &metadata) {
  std::sort(items.begin(), items.end(),
            [](const SafetensorsItem &a, const SafetensorsItem &b) {
              return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
            });
  const std::vector<SafetensorsTensor> tensors = layOut(items);
  const std::string header = formatSafetensorsHeader(tensors, metadata);
  // What we write, we must be able to read.
  const uint64_t dataBytes = tensors.empty() ? 0 : tensors.back().end;
  if (Status status = parseSafetensorsHeader(header, dataBytes).status();
      !status.isOk())
    return Status::error(StatusCode::kInternal, "'{}': {}", path,
                         status.message());

  QLORA_ASSIGN_OR_RETURN(SiblingFile file, SiblingFile::create(path));
  const uint64_t headerBytes = header.size();
  QLORA_RETURN_IF_ERROR(file.write(&headerBytes, sizeof(headerBytes)));
  QLORA_RETURN_IF_ERROR(file.write(header.data(), header.size()));
  for (const SafetensorsItem &item : items)
    QLORA_RETURN_IF_ERROR(file.write(item.bytes.data(), item.bytes.size()));
  return file.commit();
}

} // namespace qlora
