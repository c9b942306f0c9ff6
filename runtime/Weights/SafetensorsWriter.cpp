// SPDX-License-Identifier: MIT

// Writing of safetensors files: the reference implementation's order and
// padding.

#include "runtime/Weights/Safetensors.h"
#include "runtime/Weights/SafetensorsHeader.h"

#include <algorithm>
#include <cstring>

namespace qlora {

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

Status writeSafetensors(AtomicFile file, std::vector<SafetensorsItem> items,
                        const std::map<std::string, std::string> &metadata) {
  QLORA_ASSIGN_OR_RETURN(const std::string start, startOfFile(items, metadata));
  QLORA_RETURN_IF_ERROR(file.write(start));
  for (const SafetensorsItem &item : items)
    QLORA_RETURN_IF_ERROR(
        file.write({reinterpret_cast<const char *>(item.bytes.data()),
                    item.bytes.size()}));
  return file.commit();
}

Status writeSafetensors(const std::string &path,
                        std::vector<SafetensorsItem> items,
                        const std::map<std::string, std::string> &metadata) {
  QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  return writeSafetensors(std::move(file), std::move(items), metadata);
}

} // namespace qlora
