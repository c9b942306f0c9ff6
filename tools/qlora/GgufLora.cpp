// SPDX-License-Identifier: MIT

// Reorders and writes the factors of an adapter.

#include "tools/qlora/GgufLora.h"

#include <algorithm>

#include "frontend/GgufData.h"
#include "frontend/GgufValues.h"
#include "runtime/Gguf/GgufQuantize.h"

namespace qlora {

static constexpr const char *kEmbedding = "token_embd.weight";

/// Finds the changes of the source's parts, if there are any.
Status GgufLora::addPair(const GgufSource &source, GgufType type) {
  Pair pair{&source, {}};
  const int64_t width = source.rowValues(), rows = source.matrixRows();
  const int64_t count = source.tensor.elements() / (width * rows);
  const int64_t perPart =
      count / std::max<int64_t>(1, std::ssize(source.parts));
  for (const std::string &part : source.parts) {
    const auto found = adapter->changes.find(part);
    const TensorChange *change =
        found == adapter->changes.end() ? nullptr : &found->second;
    if (change && (!change->a || change->replacement || change->magnitude ||
                   change->tokens || change->bias))
      return Status::invalid("llama.cpp's adapters have only LoRA, and the "
                             "adapter changes '{}' in another way. Fix: --to "
                             "gguf",
                             part);
    if (change)
      pair.rank = std::max(pair.rank, change->rank());
    for (int64_t i = 0; i < perPart; ++i)
      pair.matrices.push_back({change, change ? change->firstExpert + i : 0});
  }
  if (pair.rank == 0)
    return Status::ok();
  std::vector<int64_t> a = source.tensor.shape, b = a;
  const size_t row = a.size() - 2, column = a.size() - 1;
  a[row] = b[column] = pair.rank;
  if (source.tensor.name == kEmbedding) {
    a = {rows, pair.rank};
    b = {width, pair.rank};
  }
  files.push_back({{source.tensor.name + ".lora_a", type, a}, {}});
  files.push_back({{source.tensor.name + ".lora_b", type, b}, {}});
  pairs.push_back(std::move(pair));
  return Status::ok();
}

StatusOr<GgufLora> GgufLora::plan(const GgufModel &base,
                                  const AdapterChanges &adapter, double alpha,
                                  GgufType type) {
  GgufLora lora(base, adapter, alpha);
  for (const GgufSource &source : base.sources)
    QLORA_RETURN_IF_ERROR(lora.addPair(source, type));
  return lora;
}

uint64_t GgufLora::bytes() const {
  uint64_t sum = 0;
  for (const GgufSource &file : files)
    sum += ggufAligned(static_cast<uint64_t>(file.tensor.bytes()));
  return sum;
}

uint64_t GgufLora::peakBytes() const {
  int64_t most = 0;
  for (const GgufSource &file : files)
    most = std::max(most, file.tensor.elements());
  // The factor as it is read, its values in the file's order, and the file's
  // bytes.
  return 3 * sizeof(float) * static_cast<uint64_t>(most);
}

GgufMetadata GgufLora::keys(const std::string &name) const {
  return {{"general.architecture", base->architecture},
          {"general.type", std::string("adapter")},
          {"general.name", name},
          {"adapter.type", std::string("lora")},
          {"adapter.lora.alpha", static_cast<float>(alpha)}};
}

StatusOr<std::vector<float>> GgufLora::valuesOfA(const Pair &pair) const {
  const bool isEmbedding = pair.of->tensor.name == kEmbedding;
  const int64_t inputs =
      isEmbedding ? pair.of->matrixRows() : pair.of->rowValues();
  const int64_t matrix = pair.rank * inputs;
  std::vector<float> values(pair.matrices.size() *
                            static_cast<size_t>(matrix));
  const TensorChange *read = nullptr;
  std::vector<float> a;
  for (size_t m = 0; m < pair.matrices.size(); ++m) {
    const auto &[change, expert] = pair.matrices[m];
    if (!change)
      continue;
    if (change != read) {
      QLORA_ASSIGN_OR_RETURN(a, readFactor(adapter->file, *change->a));
      read = change;
    }
    float *const out = values.data() + static_cast<int64_t>(m) * matrix;
    const float *const from = a.data() + expert * change->rank() * inputs;
    for (int64_t k = 0; k < change->rank(); ++k)
      for (int64_t i = 0; i < inputs; ++i)
        out[isEmbedding ? i * pair.rank + k : k * inputs + i] =
            from[k * inputs + i];
  }
  return values;
}

StatusOr<std::vector<float>> GgufLora::valuesOfB(const Pair &pair) const {
  const GgufSource &source = *pair.of;
  const bool isEmbedding = source.tensor.name == kEmbedding;
  const int64_t outputs =
      isEmbedding ? source.rowValues() : source.matrixRows();
  std::vector<float> values(pair.matrices.size() *
                            static_cast<size_t>(outputs * pair.rank));
  const TensorChange *read = nullptr;
  std::vector<float> b;
  for (size_t m = 0; m < pair.matrices.size(); ++m) {
    const auto &[change, expert] = pair.matrices[m];
    if (!change)
      continue;
    if (change != read) {
      QLORA_ASSIGN_OR_RETURN(b, readFactor(adapter->file, *change->b));
      read = change;
    }
    const auto factor = static_cast<float>(
        change->scale * static_cast<double>(pair.rank) / alpha *
        static_cast<double>(source.factor));
    float *const out =
        values.data() + static_cast<int64_t>(m) * outputs * pair.rank;
    for (int64_t row = 0; row < outputs; ++row) {
      const int64_t stored =
          change->firstOutput + (isEmbedding ? row : source.storedRow(row));
      const float *const from =
          b.data() + stored * change->rank() * change->experts + expert;
      for (int64_t k = 0; k < change->rank(); ++k)
        out[row * pair.rank + k] = from[k * change->experts] * factor;
    }
  }
  return values;
}

Status GgufLora::write(const std::string &to, const std::string &name) {
  path = to;
  std::vector<GgufTensor> tensors;
  for (const GgufSource &file : files)
    tensors.push_back(file.tensor);
  QLORA_ASSIGN_OR_RETURN(GgufWriter writer,
                         GgufWriter::create(path, keys(name), tensors));
  dataStart = writer.dataStart();
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Pair &pair = pairs[i / 2];
    QLORA_ASSIGN_OR_RETURN(const std::vector<float> values,
                           i % 2 ? valuesOfB(pair) : valuesOfA(pair));
    const int64_t columns = tensors[i].shape.back();
    bytes.resize(static_cast<size_t>(tensors[i].bytes()));
    if (Status status = quantizeGguf(tensors[i].type, values.data(),
                                     std::ssize(values) / columns, columns,
                                     bytes.data());
        !status.isOk())
      return status.withContext(tensors[i].name);
    QLORA_RETURN_IF_ERROR(writer.append(bytes));
  }
  return writer.commit();
}

StatusOr<std::map<std::string, std::string>> GgufLora::digests() const {
  QLORA_ASSIGN_OR_RETURN(const GgufValues values,
                         GgufValues::open(path, files, dataStart));
  return values.digests();
}

} // namespace qlora
