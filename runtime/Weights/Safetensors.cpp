// SPDX-License-Identifier: MIT

// Reads safetensors files. Writes them with the tensor order and the padding of
// the reference implementation.

#include "runtime/Weights/Safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>

static_assert(std::endian::native == std::endian::little,
              "the format is little endian and read as it is");

namespace qlora {

/// Checks the header's length against the file size, then reads the header.
static StatusOr<std::string> readHeaderText(const FileDescriptor &file,
                                            uint64_t fileBytes) {
  uint64_t headerBytes = 0;
  if (fileBytes < sizeof(headerBytes))
    return Status::dataLoss(
        "it has {} bytes, too few for a header; download it again", fileBytes);
  QLORA_RETURN_IF_ERROR(file.readAt(
      0, {reinterpret_cast<uint8_t *>(&headerBytes), sizeof(headerBytes)}));
  if (headerBytes > kMaxSafetensorsHeaderBytes)
    return Status::dataLoss("its header would have {} bytes, more than the {} "
                            "allowed; download it again",
                            headerBytes, kMaxSafetensorsHeaderBytes);
  if (headerBytes > fileBytes - sizeof(headerBytes))
    return Status::dataLoss("its header has {} bytes, but the file ends after "
                            "{} of them; download it again",
                            headerBytes, fileBytes - sizeof(headerBytes));
  std::string text(headerBytes, '\0');
  QLORA_RETURN_IF_ERROR(
      file.readAt(sizeof(headerBytes),
                  {reinterpret_cast<uint8_t *>(text.data()), text.size()}));
  return text;
}

static StatusOr<uint64_t> regularFileBytes(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0)
    return Status::notFound("{}", std::strerror(errno));
  if (!S_ISREG(info.st_mode))
    return Status::error(StatusCode::kInvalidArgument, "not a regular file");
  return static_cast<uint64_t>(info.st_size);
}

Status SafetensorsFile::load() {
  QLORA_ASSIGN_OR_RETURN(const uint64_t fileBytes,
                         regularFileBytes(file.get()));
  QLORA_ASSIGN_OR_RETURN(fileIdentity, FileIdentity::of(file.get()));
  QLORA_ASSIGN_OR_RETURN(const std::string text,
                         readHeaderText(file, fileBytes));
  dataStart = sizeof(uint64_t) + text.size();
  QLORA_ASSIGN_OR_RETURN(header,
                         parseSafetensorsHeader(text, fileBytes - dataStart));
  for (size_t i = 0; i < header.tensors.size(); ++i)
    index.emplace(header.tensors[i].name, i);
  return Status::ok();
}

StatusOr<SafetensorsFile> SafetensorsFile::open(const std::string &path) {
  SafetensorsFile opened;
  opened.filePath = path;
  opened.file = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened.file.isOpen())
    return Status::notFound("cannot open '{}': {}", path, std::strerror(errno));
  if (Status status = opened.load(); !status.isOk())
    return status.withContext(fmt::format("'{}'", path));
  return opened;
}

const SafetensorsTensor *SafetensorsFile::find(std::string_view name) const {
  const auto found = index.find(name);
  return found == index.end() ? nullptr : &tensors()[found->second];
}

StatusOr<const SafetensorsTensor *>
SafetensorsFile::get(std::string_view name) const {
  if (const SafetensorsTensor *tensor = find(name))
    return tensor;
  if (tensors().empty())
    return Status::notFound("'{}' has no tensor '{}'; it is empty", path(),
                            name);
  return Status::notFound("'{}' has no tensor '{}'; it holds {}, such as '{}'",
                          path(), name, tensors().size(), tensors()[0].name);
}

Status SafetensorsFile::read(const SafetensorsTensor &tensor,
                             uint64_t firstByte, std::span<uint8_t> out) const {
  assert(firstByte + out.size() <= tensor.byteCount() && "not of the tensor");
  return file.readAt(dataStart + tensor.begin + firstByte, out)
      .withContext(fmt::format("'{}': tensor '{}'", path(), tensor.name));
}

/// Returns the tensors with their offsets in the file.
static std::vector<SafetensorsTensor>
layOut(const std::vector<SafetensorsItem> &items) {
  std::vector<SafetensorsTensor> tensors;
  uint64_t offset = 0;
  for (const SafetensorsItem &item : items) {
    tensors.push_back({item.name, item.dtype, item.shape, offset,
                       offset + item.bytesInFile()});
    offset += item.bytesInFile();
  }
  return tensors;
}

void sortAsInFile(std::vector<SafetensorsItem> &items) {
  std::ranges::sort(items, [](const SafetensorsItem &a,
                              const SafetensorsItem &b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
}

/// Returns the bytes before the data: the header's length and the header. Sorts
/// `items` in file order. Checks that our reader accepts the header.
static StatusOr<std::string>
startOfFile(std::vector<SafetensorsItem> &items,
            const std::map<std::string, std::string> &metadata) {
  sortAsInFile(items);
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
    bytes += item.bytesInFile();
  return bytes;
}

namespace {
/// Writes tensors to a file. Adapters have hundreds of small tensors, so small
/// tensors are collected before they are written.
class TensorWriter {
public:
  TensorWriter(AtomicFile &file, const NextBytes &next, std::string start)
      : file(file), next(next), waiting(std::move(start)) {}

  Status add(const SafetensorsItem &item) {
    if (item.round)
      return addRounded(item);
    for (size_t part = 0; part < item.parts; ++part) {
      QLORA_RETURN_IF_ERROR(addNext(item.bytes.size() / item.parts));
      const size_t beside = item.beside.size() / item.parts;
      QLORA_RETURN_IF_ERROR(
          addHeld(item.beside.subspan(beside * part, beside)));
    }
    return Status::ok();
  }
  Status flush() {
    QLORA_RETURN_IF_ERROR(file.write(waiting));
    waiting.clear();
    return Status::ok();
  }

private:
  static constexpr size_t kTogether = size_t{1} << 18;

  /// Extends `waiting` by up to `bytes` bytes, at least by one. Returns the new
  /// bytes, which the caller must fill.
  StatusOr<std::span<uint8_t>> room(uint64_t bytes) {
    if (waiting.size() >= kTogether)
      QLORA_RETURN_IF_ERROR(flush());
    const size_t start = waiting.size();
    waiting.resize(start + std::min<uint64_t>(bytes, kTogether - start));
    return std::span(reinterpret_cast<uint8_t *>(waiting.data()),
                     waiting.size())
        .subspan(start);
  }
  Status addNext(uint64_t bytes) {
    while (bytes > 0) {
      QLORA_ASSIGN_OR_RETURN(const std::span<uint8_t> out, room(bytes));
      QLORA_RETURN_IF_ERROR(next(out));
      bytes -= out.size();
    }
    return Status::ok();
  }
  Status addHeld(std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      QLORA_ASSIGN_OR_RETURN(const std::span<uint8_t> out, room(bytes.size()));
      std::ranges::copy(bytes.first(out.size()), out.begin());
      bytes = bytes.subspan(out.size());
    }
    return Status::ok();
  }
  Status addRounded(const SafetensorsItem &item) {
    constexpr uint64_t kWindow = kTogether; // elements
    const uint64_t elements = item.bytes.size() / 4;
    const uint64_t size = safetensorsDtypeBits(item.dtype) / 8;
    for (uint64_t done = 0; done < elements;) {
      const uint64_t count = std::min(kWindow, elements - done);
      exact.resize(4 * count);
      QLORA_RETURN_IF_ERROR(next(exact));
      const size_t start = waiting.size();
      waiting.resize(start + count * size);
      item.round(exact.data(),
                 reinterpret_cast<uint8_t *>(waiting.data() + start),
                 static_cast<int64_t>(count));
      done += count;
      if (waiting.size() >= kTogether)
        QLORA_RETURN_IF_ERROR(flush());
    }
    return Status::ok();
  }

  AtomicFile &file;
  const NextBytes &next;
  std::string waiting;
  std::vector<uint8_t> exact; ///< f32 values to be rounded
};
} // namespace

Status writeSafetensors(AtomicFile file, std::vector<SafetensorsItem> items,
                        const std::map<std::string, std::string> &metadata,
                        const NextBytes &next, AtomicFile::Flush flush) {
  QLORA_ASSIGN_OR_RETURN(std::string start, startOfFile(items, metadata));
  TensorWriter writer(file, next, std::move(start));
  for (const SafetensorsItem &item : items)
    QLORA_RETURN_IF_ERROR(writer.add(item));
  QLORA_RETURN_IF_ERROR(writer.flush());
  return file.commit(flush);
}

Status writeSafetensors(const std::string &path,
                        std::vector<SafetensorsItem> items,
                        const std::map<std::string, std::string> &metadata) {
  QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  sortAsInFile(items);
  auto item = items.begin();
  size_t given = 0; // bytes of `item` already given
  const NextBytes next = [&](std::span<uint8_t> out) {
    while (!out.empty()) {
      for (; given == item->bytes.size(); ++item)
        given = 0;
      const auto part = item->bytes.subspan(
          given, std::min(out.size(), item->bytes.size() - given));
      std::ranges::copy(part, out.begin());
      given += part.size();
      out = out.subspan(part.size());
    }
    return Status::ok();
  };
  return writeSafetensors(std::move(file), items, metadata, next);
}

} // namespace qlora
