// SPDX-License-Identifier: MIT

// Reads GGUF tensors back into the layout of a Hugging Face folder.

#include "frontend/GgufValues.h"

#include <algorithm>
#include <cassert>
#include <fcntl.h>

#include "frontend/GgufData.h"
#include "runtime/Base/Sha256.h"
#include "runtime/Gguf/GgufQuantize.h"

namespace qlora {

StatusOr<GgufValues> GgufValues::open(const std::string &path,
                                      std::span<const GgufSource> sources,
                                      uint64_t dataStart) {
  GgufValues values;
  values.path = path;
  values.file = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!values.file.isOpen())
    return Status::unavailable("{}: the written file cannot be read; export it "
                               "again",
                               path);
  values.sources = sources;
  uint64_t offset = dataStart;
  for (size_t i = 0; i < sources.size(); ++i) {
    values.offsets.push_back(offset);
    offset += ggufAligned(static_cast<uint64_t>(sources[i].tensor.bytes()));
    for (size_t part = 0; part < sources[i].parts.size(); ++part)
      values.users.emplace(sources[i].parts[part], std::pair(i, part));
  }
  return values;
}

/// Decodes elements `begin` to `end` of a tensor, which are whole blocks, a
/// window at a time.
Status GgufValues::decode(size_t number, int64_t begin, int64_t end,
                          const TakeValues &take) const {
  const GgufType type = sources[number].tensor.type;
  std::vector<uint8_t> bytes;
  std::vector<float> values;
  for (int64_t first = begin; first < end; first += kGgufWindow) {
    const int64_t count = std::min(kGgufWindow, end - first);
    bytes.resize(static_cast<size_t>(ggufBytes(type, count)));
    values.resize(static_cast<size_t>(count));
    const auto offset = static_cast<uint64_t>(ggufBytes(type, first));
    if (Status status = file.readAt(offsets[number] + offset, bytes);
        !status.isOk())
      return status.withContext(path);
    dequantizeGguf(type, bytes.data(), count, values.data());
    take(first, values);
  }
  return Status::ok();
}

Status GgufValues::scatter(size_t number, size_t part,
                           std::span<float> out) const {
  const GgufSource &source = sources[number];
  const auto parts = static_cast<int64_t>(source.parts.size());
  const int64_t count = source.tensor.elements() / parts;
  const int64_t width = source.rowValues(), rows = source.matrixRows();
  const int64_t storedRows = rows * source.stride;
  assert(static_cast<int64_t>(out.size()) == count * source.stride);
  const int64_t begin = static_cast<int64_t>(part) * count;
  const auto put = [&](int64_t i, float value) {
    const int64_t row = i / width, column = i % width;
    const int64_t matrix = row / rows;
    const int64_t stored = source.storedRow(row % rows);
    const int64_t place =
        source.isTransposed
            ? (matrix * width + column) * storedRows + stored
            : (matrix * storedRows + stored) * width + column;
    out[static_cast<size_t>(place)] = (value - source.addend) / source.factor;
  };
  return decode(number, begin, begin + count,
                [&](int64_t first, std::span<const float> values) {
                  for (size_t i = 0; i < values.size(); ++i)
                    put(first - begin + static_cast<int64_t>(i), values[i]);
                });
}

StatusOr<std::map<std::string, std::string>> GgufValues::digests() const {
  std::map<std::string, std::string> all;
  for (size_t i = 0; i < sources.size(); ++i) {
    Sha256 hash;
    QLORA_RETURN_IF_ERROR(
        decode(i, 0, sources[i].tensor.elements(),
               [&](int64_t, std::span<const float> values) {
                 hash.add(values.data(), values.size_bytes());
               }));
    all.emplace(sources[i].tensor.name, hash.finish());
  }
  return all;
}

Status GgufValues::read(const std::string &name, int64_t count,
                        std::vector<float> &out) const {
  out.assign(static_cast<size_t>(count), 0);
  const auto [begin, end] = users.equal_range(name);
  if (begin == end)
    return Status::notFound("{}: no tensor of the file is made of {}; export "
                            "it again",
                            path, name);
  for (auto user = begin; user != end; ++user) {
    const auto &[source, part] = user->second;
    QLORA_RETURN_IF_ERROR(scatter(source, part, out));
  }
  return Status::ok();
}

} // namespace qlora
