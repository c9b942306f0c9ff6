// SPDX-License-Identifier: MIT

// Reads GGUF tensors back into the layout of a Hugging Face folder.

#include "frontend/GgufValues.h"

#include <cassert>
#include <fcntl.h>

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

Status GgufValues::scatter(size_t number, size_t part,
                           std::span<float> out) const {
  const GgufSource &source = sources[number];
  const GgufTensor &tensor = source.tensor;
  const auto parts = static_cast<int64_t>(source.parts.size());
  const int64_t count = tensor.elements() / parts;
  const int64_t width = source.rowValues(), rows = source.matrixRows();
  std::vector<uint8_t> bytes(
      static_cast<size_t>(ggufBytes(tensor.type, count)));
  if (Status status =
          file.readAt(offsets[number] + part * bytes.size(), bytes);
      !status.isOk())
    return status.withContext(path);
  std::vector<float> values(static_cast<size_t>(count));
  dequantizeGguf(tensor.type, bytes.data(), count, values.data());
  const int64_t storedRows = rows * source.stride;
  assert(static_cast<int64_t>(out.size()) == count * source.stride);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = i / width, column = i % width;
    const int64_t matrix = row / rows;
    const int64_t stored = source.storedRow(row % rows);
    const int64_t place =
        source.isTransposed
            ? (matrix * width + column) * storedRows + stored
            : (matrix * storedRows + stored) * width + column;
    out[static_cast<size_t>(place)] =
        (values[static_cast<size_t>(i)] - source.addend) / source.factor;
  }
  return Status::ok();
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
