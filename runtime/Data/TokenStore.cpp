// SPDX-License-Identifier: MIT

// Reading and checking of tokens, in both kinds of file.

#include "runtime/Data/TokenStore.h"

#include <algorithm>
#include <cassert>

namespace qlora {

StatusOr<TokenStore> TokenStore::open(const std::string &path,
                                      const CompiledVariants &variants) {
  QLORA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  TokenStore store(std::move(file));
  QLORA_RETURN_IF_ERROR(store.load(variants));
  for (int64_t row = 0; row < store.rows(); ++row)
    QLORA_RETURN_IF_ERROR(store.checkRow(row, variants));
  if (std::ranges::all_of(store.labelCounts,
                          [](int64_t count) { return count == 0; }))
    return Status::invalid("'{}' has no labelled token to predict: all labels "
                           "are -100 or the first of their row",
                           path);
  return store;
}

StatusOr<MappedIntegers<int32_t>>
TokenStore::integers(std::string_view name,
                     const std::vector<int64_t> &shape) const {
  QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *tensor, file.get(name));
  if (tensor->dtype != SafetensorsDtype::kI32)
    return Status::invalid("'{}': {} expects I32, but is {}", file.path(), name,
                           safetensorsDtypeName(tensor->dtype));
  if (tensor->shape != shape)
    return Status::invalid("'{}': {} has the shape {}, but input_ids has {}",
                           file.path(), name, formatShape(tensor->shape),
                           formatShape(shape));
  return MappedIntegers<int32_t>(file.bytes(*tensor));
}

Status TokenStore::load(const CompiledVariants &variants) {
  const bool hasRows = file.find("row_offsets") != nullptr;
  QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *first, file.get("input_ids"));
  if (first->shape.size() != (hasRows ? 1 : 3))
    return Status::invalid("'{}': input_ids has the shape {}, but expects {}",
                           file.path(), formatShape(first->shape),
                           hasRows ? "[tokens]"
                                   : "[micro_batches, batch, length]");
  QLORA_ASSIGN_OR_RETURN(ids, integers("input_ids", first->shape));
  QLORA_ASSIGN_OR_RETURN(labelIds, integers("labels", first->shape));
  return hasRows ? loadOffsets() : loadWhole(first->shape, variants);
}

Status TokenStore::loadWhole(const std::vector<int64_t> &shape,
                             const CompiledVariants &variants) {
  batch = shape[1];
  rowLength = shape[2];
  if (shape[0] == 0)
    return Status::invalid("'{}' has no micro-batches", file.path());
  if (batch != variants.batch ||
      !std::ranges::binary_search(variants.lengths, rowLength))
    return Status::invalid(
        "'{}' has micro-batches of {} x {} tokens, but the program was "
        "compiled for {} x {}; compile again with "
        "--per-device-train-batch-size {} --max-length {}",
        file.path(), batch, rowLength, variants.batch,
        fmt::join(variants.lengths, " or "), batch, rowLength);
  if (file.find("segment_ids")) {
    QLORA_ASSIGN_OR_RETURN(segments, integers("segment_ids", shape));
  }
  if (file.find("position_ids")) {
    QLORA_ASSIGN_OR_RETURN(positions, integers("position_ids", shape));
  }
  labelCounts.resize(static_cast<size_t>(shape[0] * batch));
  return Status::ok();
}

Status TokenStore::loadOffsets() {
  QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *tensor,
                         file.get("row_offsets"));
  if (tensor->dtype != SafetensorsDtype::kI64 || tensor->shape.size() != 1)
    return Status::invalid("'{}': row_offsets expects I64 [rows + 1], but is "
                           "{} {}",
                           file.path(), safetensorsDtypeName(tensor->dtype),
                           formatShape(tensor->shape));
  if (tensor->shape[0] < 2)
    return Status::invalid("'{}' has no rows", file.path());
  offsets = MappedIntegers<int64_t>(file.bytes(*tensor));
  bool rises = offsets[0] == 0 && offsets[offsets.size() - 1] == ids.size();
  for (int64_t row = 1; row < offsets.size(); ++row)
    rises = rises && offsets[row - 1] < offsets[row];
  if (!rises)
    return Status::error(StatusCode::kDataLoss,
                         "'{}': row_offsets does not rise from 0 to the {} "
                         "tokens of input_ids",
                         file.path(), ids.size());
  labelCounts.resize(static_cast<size_t>(offsets.size() - 1));
  return Status::ok();
}

std::string TokenStore::placeName(int64_t row, int64_t position) const {
  if (!isWhole())
    return fmt::format("'{}': row {}, position {}", file.path(), row, position);
  return fmt::format("'{}': micro-batch {}, row {}, position {}", file.path(),
                     row / batch, row % batch, position);
}

Status TokenStore::checkRow(int64_t row, const CompiledVariants &variants) {
  const int64_t size = length(row), first = begin(row);
  if (size > variants.lengths.back())
    return Status::invalid("'{}': row {} has {} tokens, but max_length is {}",
                           file.path(), row, size, variants.lengths.back());
  const auto isToken = [&](int32_t id) {
    return id >= 0 && id < variants.vocabSize;
  };
  for (int64_t t = 0, at = first; t < size; ++t, ++at) {
    const int32_t id = ids[at], label = labelIds[at];
    if (!isToken(id))
      return Status::invalid("{}: token id {} is outside the model's "
                             "vocabulary [0, {}); is it another model's "
                             "tokenizer?",
                             placeName(row, t), id, variants.vocabSize);
    if (label != kNoLabel && !isToken(label))
      return Status::invalid("{}: label {} is neither -100 nor inside the "
                             "model's vocabulary [0, {})",
                             placeName(row, t), label, variants.vocabSize);
    if (!positions.isEmpty() && (positions[at] < 0 || positions[at] >= size))
      return Status::invalid("{}: position_ids has {}, which is outside "
                             "[0, {})",
                             placeName(row, t), positions[at], size);
    if (!segments.isEmpty() && segments[at] < 0)
      return Status::invalid("{}: segment_ids has {}, which is below 0",
                             placeName(row, t), segments[at]);
    const bool isTarget = t > 0 && label != kNoLabel && continues(at) &&
                          (segments.isEmpty() || segments[at] != 0);
    labelCounts[static_cast<size_t>(row)] += isTarget;
  }
  return Status::ok();
}

void TokenStore::identify(ContentHash &hash) const {
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < rows(); ++row)
    lengths.push_back(length(row));
  hash.add(lengths);
  hash.add(labelCounts);
}

void TokenStore::place(int64_t row, int64_t line, int64_t offset,
                       int32_t segment, MicroBatch &out) const {
  const int64_t size = length(row), first = begin(row);
  assert(offset + size <= out.length);
  const int64_t to = line * out.length + offset;
  for (int64_t t = 0; t < size; ++t) {
    const int64_t at = first + t;
    const bool goesOn = t > 0 && continues(at);
    out.ids[to + t] = ids[at];
    out.segments[to + t] = segments.isEmpty() ? segment : segments[at];
    if (!positions.isEmpty())
      out.positions[to + t] = positions[at];
    else
      out.positions[to + t] = goesOn ? out.positions[to + t - 1] + 1 : 0;
    if (goesOn && out.segments[to + t] != 0)
      out.targets[to + t - 1] = labelIds[at];
  }
}

} // namespace qlora
