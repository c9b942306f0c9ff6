// SPDX-License-Identifier: MIT

// The file behind SafetensorsFile.

#include "runtime/Weights/Safetensors.h"

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Weights/SafetensorsHeader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>

static_assert(std::endian::native == std::endian::little,
              "the format is little endian and read as it is");

namespace qlora {

struct SafetensorsFile::Contents {
  std::string path;
  FileIdentity identity;
  SafetensorsHeader header;
  std::map<std::string, size_t, std::less<>> index; ///< into header.tensors
  size_t dataStart = 0;
  FileDescriptor file;
};

static Status readFully(int fd, uint64_t offset, void *out, size_t bytes) {
  auto *cursor = static_cast<char *>(out);
  while (bytes > 0) {
    const ssize_t got = pread(fd, cursor, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return Status::error(StatusCode::kDataLoss, "cannot read it: {}",
                           std::strerror(errno));
    if (got == 0)
      return Status::error(StatusCode::kDataLoss, "it ends at byte {}", offset);
    cursor += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return Status::ok();
}

/// The header's text, after the checks that need the file's size only.
static StatusOr<std::string> readHeaderText(int fd, uint64_t fileBytes) {
  uint64_t headerBytes = 0;
  if (fileBytes < sizeof(headerBytes))
    return Status::error(StatusCode::kDataLoss,
                         "it has {} bytes, fewer than the 8 of a header",
                         fileBytes);
  QLORA_RETURN_IF_ERROR(readFully(fd, 0, &headerBytes, sizeof(headerBytes)));
  if (headerBytes > kMaxSafetensorsHeaderBytes)
    return Status::error(StatusCode::kDataLoss,
                         "its header says {} bytes, more than the {} allowed",
                         headerBytes, kMaxSafetensorsHeaderBytes);
  if (headerBytes > fileBytes - sizeof(headerBytes))
    return Status::error(StatusCode::kDataLoss,
                         "its header says {} bytes, but only {} follow",
                         headerBytes, fileBytes - sizeof(headerBytes));
  std::string text(headerBytes, '\0');
  QLORA_RETURN_IF_ERROR(
      readFully(fd, sizeof(headerBytes), text.data(), text.size()));
  return text;
}

static StatusOr<uint64_t> regularFileBytes(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0)
    return Status::error(StatusCode::kNotFound, "{}", std::strerror(errno));
  if (!S_ISREG(info.st_mode))
    return Status::error(StatusCode::kInvalidArgument, "not a regular file");
  return static_cast<uint64_t>(info.st_size);
}

StatusOr<SafetensorsFile> SafetensorsFile::open(const std::string &path) {
  auto contents = std::make_unique<Contents>();
  contents->path = path;
  contents->file = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int fd = contents->file.get();
  if (fd < 0)
    return Status::error(StatusCode::kNotFound, "cannot open '{}': {}", path,
                         std::strerror(errno));
  auto load = [&]() -> Status {
    QLORA_ASSIGN_OR_RETURN(uint64_t fileBytes, regularFileBytes(fd));
    QLORA_ASSIGN_OR_RETURN(contents->identity, FileIdentity::of(fd));
    QLORA_ASSIGN_OR_RETURN(std::string text,
                           readHeaderText(fd, fileBytes));
    contents->dataStart = sizeof(uint64_t) + text.size();
    QLORA_ASSIGN_OR_RETURN(
        contents->header,
        parseSafetensorsHeader(text, fileBytes - contents->dataStart));
    return Status::ok();
  };
  if (Status status = load(); !status.isOk())
    return status.withContext(fmt::format("'{}'", path));
  for (size_t i = 0; i < contents->header.tensors.size(); ++i)
    contents->index.emplace(contents->header.tensors[i].name, i);
  return SafetensorsFile(std::move(contents));
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<Contents> contents)
    : contents(std::move(contents)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile &&) noexcept = default;
SafetensorsFile &
SafetensorsFile::operator=(SafetensorsFile &&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

const std::string &SafetensorsFile::path() const { return contents->path; }

const FileIdentity &SafetensorsFile::identity() const {
  return contents->identity;
}

const std::vector<SafetensorsTensor> &SafetensorsFile::tensors() const {
  return contents->header.tensors;
}

const std::map<std::string, std::string> &SafetensorsFile::metadata() const {
  return contents->header.metadata;
}

const SafetensorsTensor *SafetensorsFile::find(std::string_view name) const {
  const auto found = contents->index.find(name);
  return found == contents->index.end() ? nullptr : &tensors()[found->second];
}

StatusOr<const SafetensorsTensor *>
SafetensorsFile::get(std::string_view name) const {
  if (const SafetensorsTensor *tensor = find(name))
    return tensor;
  if (tensors().empty())
    return Status::error(StatusCode::kNotFound,
                         "'{}' has no tensor '{}'; it is empty", path(), name);
  return Status::error(StatusCode::kNotFound,
                       "'{}' has no tensor '{}'; it holds {}, such as '{}'",
                       path(), name, tensors().size(), tensors()[0].name);
}

Status SafetensorsFile::read(const SafetensorsTensor &tensor,
                             uint64_t firstByte, std::span<uint8_t> out) const {
  assert(firstByte + out.size() <= tensor.byteCount() && "not of the tensor");
  return readFully(contents->file.get(),
                   contents->dataStart + tensor.begin + firstByte, out.data(),
                   out.size())
      .withContext(fmt::format("'{}': tensor '{}'", path(), tensor.name));
}

} // namespace qlora
