// SPDX-License-Identifier: MIT

// Finds and reads tensors of a model's files.

#include "runtime/Weights/FileWeight.h"

#include <algorithm>
#include <cstring>

#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/KernelTable.h"
#include "runtime/Weights/ConvertWeights.h"

namespace qlora {

/// Bytes that a thread reads at a time.
static constexpr int64_t kPiece = int64_t{1} << 20;

Status FileWeight::read(int64_t first, std::span<uint8_t> out) const {
  const int64_t begin = first * weightBytes(dtype);
  const auto bytes = static_cast<int64_t>(out.size());
  const int64_t pieces = (bytes + kPiece - 1) / kPiece;
  return FallibleTasks(threadCount()).run(pieces, [&](int64_t piece, int64_t) {
    const int64_t at = piece * kPiece;
    return file->read(*tensor, static_cast<uint64_t>(begin + at),
                      out.subspan(at, std::min(kPiece, bytes - at)));
  });
}

/// Compares shapes; [n, rows, columns] also matches [n * rows, columns].
static bool hasShape(const SafetensorsTensor &tensor,
                     std::span<const int64_t> shape) {
  const std::vector<int64_t> &stored = tensor.shape;
  if (stored.size() == 3 && shape.size() == 2)
    return stored[2] == shape[1] &&
           tensor.elementCount() == shape[0] * shape[1];
  return std::ranges::equal(stored, shape);
}

StatusOr<FileWeight> FileWeight::of(const SafetensorsFile &file,
                                    const SafetensorsTensor &tensor,
                                    std::span<const int64_t> shape) {
  if (!hasShape(tensor, shape))
    return Status::invalid(
        "'{}': tensor '{}' has shape {}, but train.so was compiled for {}",
        file.path(), tensor.name, formatShape(tensor.shape),
        formatShape(shape));
  const auto dtype = toAbiDtype(tensor.dtype);
  if (!dtype || weightBytes(*dtype) == 0)
    return Status::invalid(
        "'{}': tensor '{}' is {}; weights must be F32, BF16 or F16",
        file.path(), tensor.name, safetensorsDtypeName(tensor.dtype));
  return FileWeight{&file, &tensor, *dtype};
}

StatusOr<FileWeight> FileWeight::find(const ModelFiles *model, const char *name,
                                      std::span<const int64_t> shape,
                                      qlora_dtype expected) {
  if (!model)
    return Status::notFound(
        "parameter '{}' needs a model folder, but none is given", name);
  QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry entry, model->get(name));
  QLORA_ASSIGN_OR_RETURN(FileWeight weight,
                         of(*entry.file, *entry.tensor, shape));
  if (weight.dtype != expected)
    return Status::invalid("'{}': tensor '{}' is {}, but train.so was compiled "
                           "for {}; compile it again for this model",
                           entry.file->path(), entry.tensor->name,
                           safetensorsDtypeName(entry.tensor->dtype),
                           dtypeName(expected));
  return weight;
}

std::vector<const char *> fileNamesOf(const qlora_parameter &parameter) {
  if (parameter.parts == 0)
    return {parameter.name};
  std::vector<const char *> names;
  const char *name = parameter.name;
  for (uint32_t part = 0; part < parameter.parts; ++part) {
    name += std::strlen(name) + 1;
    names.push_back(name);
  }
  return names;
}

StatusOr<StackedFileWeight>
StackedFileWeight::find(const ModelFiles *model,
                        const qlora_parameter &parameter) {
  std::vector<int64_t> shape(parameter.shape, parameter.shape + parameter.rank);
  shape[0] /= parameter.parts;
  StackedFileWeight weight = {{}, 1};
  for (int64_t extent : shape)
    weight.partElements *= extent;
  for (const char *name : fileNamesOf(parameter)) {
    QLORA_ASSIGN_OR_RETURN(
        FileWeight part,
        FileWeight::find(model, name, shape,
                         static_cast<qlora_dtype>(parameter.file_dtype)));
    weight.parts.push_back(part);
  }
  return weight;
}

Status StackedFileWeight::read(int64_t first, std::span<uint8_t> out) const {
  const auto size = static_cast<int64_t>(weightBytes(parts.front().dtype));
  while (!out.empty()) {
    const int64_t within = first % partElements;
    const int64_t count = std::min(partElements - within,
                                   static_cast<int64_t>(out.size()) / size);
    const auto bytes = static_cast<size_t>(count * size);
    QLORA_RETURN_IF_ERROR(parts[static_cast<size_t>(first / partElements)].read(
        within, out.first(bytes)));
    out = out.subspan(bytes);
    first += count;
  }
  return Status::ok();
}

} // namespace qlora
