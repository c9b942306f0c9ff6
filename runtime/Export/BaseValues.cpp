// SPDX-License-Identifier: MIT

// Reads and decodes base weights.

#include "runtime/Export/BaseValues.h"

#include <algorithm>

#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/FrozenParameter.h"
#include "runtime/Weights/ParameterWeight.h"
#include "runtime/Weights/StoredTensors.h"
#include "runtime/Weights/WholeTensor.h"

namespace qlora {

/// Elements of a file that are read at a time.
static constexpr int64_t kWindow = int64_t{1} << 20;

StatusOr<PackedWeight> PackedWeight::read(const ModelFiles &model,
                                          std::string_view name) {
  QLORA_ASSIGN_OR_RETURN(const StoredDescription stored,
                         describeStored(model, name));
  PackedWeight weight;
  weight.layout = stored.layout;
  weight.columns = stored.shape.back();
  QLORA_ASSIGN_OR_RETURN(
      weight.bytes,
      HostMemory::anonymous(static_cast<uint64_t>(stored.layout.bytes)));
  QLORA_RETURN_IF_ERROR(copyStored(model, name, stored.shape, stored.layout,
                                   weight.bytes.bytes().data()));
  return weight;
}

StatusOr<PackedWeight> PackedWeight::quantize(const LoadedModule &program,
                                              const ModelFiles &model,
                                              const qlora_parameter &of) {
  ParameterSources sources;
  sources.model = &model;
  QLORA_ASSIGN_OR_RETURN(qlora_parameter whole,
                         findWhole(program, sources, of));
  PackedWeight weight;
  weight.layout = layoutOf(whole);
  weight.columns = shapeOf(whole).back();
  // A "resident" weight is decoded in its arena; here it stays packed.
  whole.dtype = whole.format;
  whole.offset = 0;
  whole.bytes = static_cast<uint64_t>(weight.layout.bytes);
  QLORA_ASSIGN_OR_RETURN(weight.bytes, HostMemory::anonymous(whole.bytes));
  HostArena arena(weight.bytes.bytes().first(whole.bytes));
  QLORA_RETURN_IF_ERROR(fillFrozenParameter(sources, whole, arena));
  return weight;
}

BaseValues BaseValues::dense(FileWeight weight) {
  BaseValues values;
  values.file = weight;
  return values;
}

BaseValues BaseValues::packed(std::shared_ptr<const PackedWeight> packed,
                              int64_t first) {
  BaseValues values;
  values.codes = std::move(packed);
  values.firstCode = first;
  return values;
}

void BaseValues::transpose(int64_t rowCount, int64_t columnCount) {
  rows = rowCount;
  columns = columnCount;
}

Status BaseValues::read(int64_t first, std::span<float> out) {
  if (!codes)
    return readDense(first, out);
  if (rows != 0) {
    readTransposed(first, out);
    return Status::ok();
  }
  StoredWeight::of(codes->layout, codes->columns)
      .decode(codes->bytes.bytes().data(), firstCode + first, std::ssize(out),
              QLORA_DTYPE_F32, out.data());
  return Status::ok();
}

Status BaseValues::readDense(int64_t first, std::span<float> out) const {
  const int64_t size = weightBytes(file->dtype);
  std::vector<uint8_t> window;
  for (int64_t done = 0; done < std::ssize(out); done += kWindow) {
    const int64_t count = std::min(kWindow, std::ssize(out) - done);
    window.resize(static_cast<size_t>(count * size));
    QLORA_RETURN_IF_ERROR(file->read(first + done, window));
    convertWeights(file->dtype, window.data(), QLORA_DTYPE_F32,
                   reinterpret_cast<uint8_t *>(out.data() + done), count);
  }
  return Status::ok();
}

void BaseValues::readTransposed(int64_t first, std::span<float> out) {
  const int64_t size = rows * columns;
  for (float &value : out) {
    const int64_t index = first + (&value - out.data());
    if (const int64_t wanted = index / size; wanted != matrixIndex) {
      matrix.resize(static_cast<size_t>(size));
      StoredWeight::of(codes->layout, codes->columns)
          .decode(codes->bytes.bytes().data(), firstCode + wanted * size, size,
                  QLORA_DTYPE_F32, matrix.data());
      matrixIndex = wanted;
    }
    const int64_t within = index % size;
    value = matrix[static_cast<size_t>(within % rows * columns +
                                       within / rows)];
  }
}

} // namespace qlora
