// SPDX-License-Identifier: MIT

// The file behind SafetensorsFile.

#include "runtime/Weights/Safetensors.h"

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Weights/SafetensorsHeader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>

static_assert(std::endian::native == std::endian::little,
              "the format is little endian and read in place");

namespace qlora {

struct SafetensorsFile::Mapping {
  std::string path;
  FileIdentity identity;
  SafetensorsHeader header;
  std::map<std::string, size_t, std::less<>> index; ///< into header.tensors
  const uint8_t *base = nullptr;                    ///< of the whole file
  size_t fileBytes = 0;
  size_t dataStart = 0;
  FileDescriptor file;

  ~Mapping() {
    if (base)
      munmap(const_cast<uint8_t *>(base), fileBytes);
  }
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
  auto mapping = std::make_unique<Mapping>();
  mapping->path = path;
  mapping->file = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int fd = mapping->file.get();
  if (fd < 0)
    return Status::error(StatusCode::kNotFound, "cannot open '{}': {}", path,
                         std::strerror(errno));
  auto load = [&]() -> Status {
    QLORA_ASSIGN_OR_RETURN(uint64_t fileBytes, regularFileBytes(fd));
    QLORA_ASSIGN_OR_RETURN(mapping->identity, FileIdentity::of(fd));
    QLORA_ASSIGN_OR_RETURN(std::string text,
                           readHeaderText(fd, fileBytes));
    mapping->dataStart = sizeof(uint64_t) + text.size();
    QLORA_ASSIGN_OR_RETURN(
        mapping->header,
        parseSafetensorsHeader(text, fileBytes - mapping->dataStart));
    void *base = mmap(nullptr, fileBytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED)
      return Status::error(StatusCode::kResourceExhausted,
                           "cannot map {} bytes: {}", fileBytes,
                           std::strerror(errno));
    mapping->base = static_cast<const uint8_t *>(base);
    mapping->fileBytes = fileBytes;
    return Status::ok();
  };
  if (Status status = load(); !status.isOk())
    return status.withContext(fmt::format("'{}'", path));
  for (size_t i = 0; i < mapping->header.tensors.size(); ++i)
    mapping->index.emplace(mapping->header.tensors[i].name, i);
  return SafetensorsFile(std::move(mapping));
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<Mapping> mapping)
    : mapping(std::move(mapping)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile &&) noexcept = default;
SafetensorsFile &
SafetensorsFile::operator=(SafetensorsFile &&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

const std::string &SafetensorsFile::path() const { return mapping->path; }

const FileIdentity &SafetensorsFile::identity() const {
  return mapping->identity;
}

const std::vector<SafetensorsTensor> &SafetensorsFile::tensors() const {
  return mapping->header.tensors;
}

const std::map<std::string, std::string> &SafetensorsFile::metadata() const {
  return mapping->header.metadata;
}

const SafetensorsTensor *SafetensorsFile::find(std::string_view name) const {
  const auto found = mapping->index.find(name);
  return found == mapping->index.end() ? nullptr : &tensors()[found->second];
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

std::span<const uint8_t>
SafetensorsFile::bytes(const SafetensorsTensor &tensor) const {
  assert(tensor.end <= mapping->fileBytes - mapping->dataStart &&
         "a tensor of another file");
  return {mapping->base + mapping->dataStart + tensor.begin,
          static_cast<size_t>(tensor.byteCount())};
}

Status SafetensorsFile::read(const SafetensorsTensor &tensor,
                             uint64_t firstByte, std::span<uint8_t> out) const {
  assert(firstByte + out.size() <= tensor.byteCount() && "not of the tensor");
  return readFully(mapping->file.get(),
                   mapping->dataStart + tensor.begin + firstByte, out.data(),
                   out.size())
      .withContext(fmt::format("'{}': tensor '{}'", path(), tensor.name));
}

} // namespace qlora
