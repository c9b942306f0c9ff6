// SPDX-License-Identifier: MIT

// Quantizes merged weights, and decodes them again.

#include "runtime/Export/QuantizedWeights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/Sha256.h"
#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/QuantizeTensor.h"
#include "runtime/Weights/StoredReaders.h"

namespace qlora {

/// Values that are read or decoded at a time.
static constexpr int64_t kReadValues = int64_t{1} << 20;
/// Elements of a block in formats that allow several lengths: bitsandbytes'
/// default.
static constexpr int64_t kBlock = 64;
/// Longest text of a JSON number.
static constexpr size_t kNumberBytes = 24;

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

namespace {
/// Reads windows of a weight's values, [.., out, in].
class WindowReader {
public:
  WindowReader(TensorValues values, const MergedTensor &tensor, bool isTurned)
      : values(std::move(values)), tensor(tensor), isTurned(isTurned) {}

  /// Reads a window. After an error, windows have any values.
  void fetch(int64_t first, int64_t count) {
    begin = first;
    window.resize(static_cast<size_t>(count));
    if (status.isOk())
      status = fill(first);
  }
  /// Copies values of the window that was fetched last.
  void read(int64_t first, int64_t count, float *out) const {
    std::copy_n(window.data() + (first - begin), count, out);
  }

  Status status; ///< the first error of fetch()

private:
  Status fill(int64_t first);
  Status fillTurned(int64_t first);
  Status loadMatrix(int64_t index);

  TensorValues values;
  const MergedTensor &tensor;
  const bool isTurned;
  std::vector<float> window;
  int64_t begin = 0; ///< first element of the window
  std::vector<float> matrix; ///< of a turned weight, [out, in]
  int64_t matrixIndex = -1;
};
} // namespace

/// Reads a matrix [in, out] of a turned weight, as [out, in].
Status WindowReader::loadMatrix(int64_t index) {
  if (index == matrixIndex)
    return Status::ok();
  matrixIndex = index;
  const int64_t out = tensor.shape.back();
  const int64_t in = tensor.shape[tensor.shape.size() - 2];
  matrix.resize(static_cast<size_t>(out * in));
  const int64_t most = std::max<int64_t>(1, kReadValues / out);
  std::vector<float> rows;
  for (int64_t row = 0; row < in; row += most) {
    const int64_t count = std::min(most, in - row);
    rows.resize(static_cast<size_t>(count * out));
    QLORA_RETURN_IF_ERROR(values.read((index * in + row) * out, rows));
    parallelRanges(out, 1, [&](int64_t from, int64_t to) {
      for (int64_t o = from; o < to; ++o)
        for (int64_t i = 0; i < count; ++i)
          matrix[static_cast<size_t>(o * in + row + i)] =
              rows[static_cast<size_t>(i * out + o)];
    });
  }
  return Status::ok();
}

Status WindowReader::fillTurned(int64_t first) {
  const int64_t size =
      tensor.shape.back() * tensor.shape[tensor.shape.size() - 2];
  for (int64_t done = 0; done < std::ssize(window);) {
    QLORA_RETURN_IF_ERROR(loadMatrix((first + done) / size));
    const int64_t within = (first + done) % size;
    const int64_t part = std::min(std::ssize(window) - done, size - within);
    std::copy_n(matrix.data() + within, part, window.data() + done);
    done += part;
  }
  return Status::ok();
}

Status WindowReader::fill(int64_t first) {
  QLORA_RETURN_IF_ERROR(isTurned ? fillTurned(first)
                                 : values.read(first, window));
  for (const float value : window)
    if (!std::isfinite(value))
      return Status::invalid("tensor '{}' has the value {}, which cannot be "
                             "quantized. Fix: use a base whose weights are "
                             "finite",
                             tensor.name, value);
  return Status::ok();
}

//===----------------------------------------------------------------------===//
// Quantization
//===----------------------------------------------------------------------===//

static StoredLayout layoutFor(const WeightQuantization &how, int64_t elements,
                              int64_t columns) {
  const StoredFormat &format = *how.format;
  const int64_t block = format.takesRows ? columns
                        : format.leastBlock == format.mostBlock
                            ? format.leastBlock
                            : kBlock;
  return StoredLayout::of(format.dtype, elements, block,
                          format.codedScales == CodedScales::kAlways ||
                              how.doubleQuant);
}

/// Returns the tensors of an FP8 weight in compressed-tensors.
static std::vector<StoredPart> rowParts(const std::string &weight,
                                        const std::vector<int64_t> &shape,
                                        const StoredLayout &layout) {
  return {{weight, SafetensorsDtype::kF8E4M3, shape, layout.packed},
          {moduleOfWeight(weight) + ".weight_scale",
           SafetensorsDtype::kF32,
           {shape.front(), 1},
           layout.scales}};
}

QuantizedWeight::QuantizedWeight(const WeightQuantization &how,
                                 const MergedTensor &tensor,
                                 SafetensorsDtype type)
    : tensor(&tensor), type(type),
      isTurned(how.weights.find(tensor.name)->second), shape(tensor.shape) {
  if (isTurned)
    std::swap(shape.back(), shape[shape.size() - 2]);
  form = layoutFor(how, tensor.elementCount(), shape.back());
  if (form.dtype == QLORA_DTYPE_FP8) {
    all = rowParts(tensor.name, shape, form);
  } else if (form.dtype == QLORA_DTYPE_MXFP4) {
    all = microscalingParts(tensor.name, shape, form);
  } else {
    all = blockParts(tensor.name, form,
                     static_cast<int64_t>(stateText(0).size()));
    // bitsandbytes stores codes as a column.
    all[1].dtype = SafetensorsDtype::kU8;
    all[1].shape.push_back(1);
  }
}

uint64_t QuantizedWeight::bytesOf(const StoredPart &part) {
  uint64_t bytes = safetensorsDtypeBits(*part.dtype) / 8;
  for (const int64_t extent : part.shape)
    bytes *= static_cast<uint64_t>(extent);
  return bytes;
}

/// Returns the text of bitsandbytes' quant_state. Its size does not depend on
/// `offset`, so that files can be planned before weights are quantized: spaces
/// follow, which JSON allows.
std::string QuantizedWeight::stateText(float offset) const {
  const char *const name = type == SafetensorsDtype::kF16    ? "float16"
                           : type == SafetensorsDtype::kBF16 ? "bfloat16"
                                                             : "float32";
  std::string text =
      fmt::format(R"({{"quant_type": "{}", "blocksize": {}, "dtype": "{}", )"
                  R"("shape": {})",
                  form.format().name, form.block, name, formatShape(shape));
  if (!form.doubleQuant)
    return text + "}";
  text += fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", )"
                      R"("nested_offset": )",
                      kNestedRun);
  const size_t size = text.size() + kNumberBytes + 1;
  text += dumpJson(nlohmann::json(double{offset})) + "}";
  text.resize(size, ' ');
  return text;
}

uint64_t QuantizedWeight::peakBytes() const {
  const auto floats = [](int64_t count) {
    return 4 * static_cast<uint64_t>(count);
  };
  uint64_t bytes = static_cast<uint64_t>(form.bytes) +
                   floats(std::min(form.elements, kQuantizedWindow));
  if (form.doubleQuant)
    bytes += floats(form.blocks);
  if (isTurned)
    bytes += floats(shape.back() * shape[shape.size() - 2]) +
             floats(std::max(kReadValues, tensor->shape.back()));
  return bytes;
}

Status QuantizedWeight::quantize(const MergedModel &model) {
  QLORA_ASSIGN_OR_RETURN(TensorValues values, model.values(*tensor));
  WindowReader reader(std::move(values), *tensor, isTurned);
  QLORA_ASSIGN_OR_RETURN(
      packed, HostMemory::anonymous(static_cast<uint64_t>(form.bytes)));
  uint8_t *const bytes = packed.bytes().data();
  const auto fetch = [&](int64_t first, int64_t count) {
    reader.fetch(first, count);
  };
  const auto read = [&](int64_t first, int64_t count, float *out) {
    reader.read(first, count, out);
  };
  quantizeStored(form, {read, fetch}, bytes);
  QLORA_RETURN_IF_ERROR(reader.status);
  float offset = 0;
  std::memcpy(&offset, bytes + form.correction, sizeof offset);
  state = stateText(offset);
  for (const StoredPart &part : all)
    if (part.arrange)
      QLORA_RETURN_IF_ERROR(
          part.arrange({bytes + part.offset, bytesOf(part)}, bytes)
              .withContext(fmt::format("tensor '{}'", part.name)));
  return Status::ok();
}

void QuantizedWeight::copy(size_t part, uint64_t firstByte,
                           std::span<uint8_t> out) const {
  const StoredPart &from = all[part];
  const uint8_t *const bytes =
      from.offset < 0 ? reinterpret_cast<const uint8_t *>(state.data())
                      : packed.bytes().data() + from.offset;
  std::copy_n(bytes + firstByte, out.size(), out.data());
}

uint64_t quantizedPeakBytes(const MergedModel &model,
                            const WeightQuantization &how) {
  uint64_t peak = 0;
  for (const MergedTensor &tensor : model.tensors())
    if (how.isQuantized(tensor))
      peak = std::max(
          peak, QuantizedWeight(how, tensor, model.dtype()).peakBytes());
  return peak;
}

//===----------------------------------------------------------------------===//
// Digests
//===----------------------------------------------------------------------===//

StatusOr<std::map<std::string, std::string>>
digestsOfDecoded(const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(folder));
  std::map<std::string, std::string> digests;
  std::vector<float> window;
  for (const std::string &name : storedWeights(files)) {
    QLORA_ASSIGN_OR_RETURN(const PackedWeight weight,
                           PackedWeight::read(files, name));
    const StoredWeight decoder =
        StoredWeight::of(weight.layout, weight.columns);
    Sha256 digest;
    const int64_t elements = weight.layout.elements;
    for (int64_t first = 0; first < elements; first += kReadValues) {
      const int64_t count = std::min(kReadValues, elements - first);
      window.resize(static_cast<size_t>(count));
      decoder.decode(weight.bytes.bytes().data(), first, count,
                     QLORA_DTYPE_F32, window.data());
      digest.add(window.data(), window.size() * sizeof(float));
    }
    digests.emplace(name, digest.finish());
  }
  return digests;
}

} // namespace qlora
