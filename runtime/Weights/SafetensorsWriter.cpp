// SPDX-License-Identifier: MIT

// Writing of safetensors files: the reference implementation's order and
// padding, through a sibling temporary file and a rename, or in place.

#include "runtime/Weights/Safetensors.h"
#include "runtime/Weights/SafetensorsHeader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace qlora {

namespace {
/// A file that is written from its start: a temporary one beside `path`,
/// removed unless committed, or `path` itself.
class WrittenFile {
public:
  static StatusOr<WrittenFile> beside(const std::string &path) {
    // One writer per process and path; a remnant of a killed process with
    // our number is overwritten.
    return open(path, fmt::format("{}.{}.tmp", path, getpid()),
                O_CREAT | O_TRUNC);
  }
  static StatusOr<WrittenFile> inPlace(const std::string &path) {
    return open(path, path, 0);
  }

  WrittenFile(WrittenFile &&other) noexcept
      : fd(std::exchange(other.fd, -1)), name(std::move(other.name)),
        path(std::move(other.path)) {}
  WrittenFile &operator=(WrittenFile &&) = delete;
  ~WrittenFile() {
    if (fd < 0)
      return;
    close(fd);
    removeOwn();
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
    if (closed != 0 ||
        (name != path && rename(name.c_str(), path.c_str()) != 0)) {
      Status status = failure("finish");
      removeOwn();
      return status;
    }
    return Status::ok();
  }

private:
  WrittenFile(int fd, std::string name, std::string path)
      : fd(fd), name(std::move(name)), path(std::move(path)) {}

  static StatusOr<WrittenFile> open(const std::string &path, std::string name,
                                    int flags) {
    const int fd =
        ::open(name.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC | flags, 0666);
    if (fd < 0)
      return Status::error(StatusCode::kUnavailable, "cannot write {}'{}': {}",
                           name == path ? "" : "beside ", path,
                           std::strerror(errno));
    return WrittenFile(fd, std::move(name), path);
  }

  void removeOwn() const {
    if (name != path)
      unlink(name.c_str());
  }

  Status failure(std::string_view what) const {
    const int code = errno;
    const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
    return Status::error(
        full ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
        "cannot {} '{}': {}{}", what, path, std::strerror(code),
        name == path ? "" : "; what was there before is unchanged");
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

/// The length of the header, and the header, as they start the file of
/// `items`, which are sorted as they follow. What we write, we must be able to
/// read.
static StatusOr<std::string>
startOfFile(std::vector<SafetensorsItem> &items,
            const std::map<std::string, std::string> &metadata) {
  std::sort(items.begin(), items.end(),
            [](const SafetensorsItem &a, const SafetensorsItem &b) {
              return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
            });
  const std::vector<SafetensorsTensor> tensors = layOut(items);
  const std::string header = formatSafetensorsHeader(tensors, metadata);
  const uint64_t dataBytes = tensors.empty() ? 0 : tensors.back().end;
  if (Status status = parseSafetensorsHeader(header, dataBytes).status();
      !status.isOk())
    return Status(StatusCode::kInternal, status.message());
  const uint64_t headerBytes = header.size();
  std::string start(sizeof headerBytes, '\0');
  std::memcpy(start.data(), &headerBytes, sizeof headerBytes);
  return start + header;
}

StatusOr<uint64_t>
safetensorsBytes(std::vector<SafetensorsItem> items,
                 const std::map<std::string, std::string> &metadata) {
  QLORA_ASSIGN_OR_RETURN(const std::string start, startOfFile(items, metadata));
  uint64_t bytes = start.size();
  for (const SafetensorsItem &item : items)
    bytes += item.bytes.size();
  return bytes;
}

static Status writeItems(WrittenFile file, std::vector<SafetensorsItem> items,
                         const std::map<std::string, std::string> &metadata) {
  QLORA_ASSIGN_OR_RETURN(const std::string start, startOfFile(items, metadata));
  QLORA_RETURN_IF_ERROR(file.write(start.data(), start.size()));
  for (const SafetensorsItem &item : items)
    QLORA_RETURN_IF_ERROR(file.write(item.bytes.data(), item.bytes.size()));
  return file.commit();
}

Status writeSafetensors(const std::string &path,
                        std::vector<SafetensorsItem> items,
                        const std::map<std::string, std::string> &metadata) {
  QLORA_ASSIGN_OR_RETURN(WrittenFile file, WrittenFile::beside(path));
  return writeItems(std::move(file), std::move(items), metadata);
}

Status fillSafetensors(const std::string &path,
                       std::vector<SafetensorsItem> items,
                       const std::map<std::string, std::string> &metadata) {
  QLORA_ASSIGN_OR_RETURN(WrittenFile file, WrittenFile::inPlace(path));
  return writeItems(std::move(file), std::move(items), metadata);
}

} // namespace qlora
