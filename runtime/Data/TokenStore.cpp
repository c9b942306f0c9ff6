// SPDX-License-Identifier: MIT

// Reads and checks the tokens of token files and rows files.

#include "runtime/Data/TokenStore.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <set>
#include <span>

namespace qlora {

/// Tokens per read while a file is opened.
static constexpr int64_t kWindow = int64_t{1} << 16;

template <typename T>
static std::span<uint8_t> writableBytes(std::vector<T> &values) {
  return {reinterpret_cast<uint8_t *>(values.data()),
          values.size() * sizeof(T)};
}

StatusOr<TokenStore> TokenStore::open(const std::string &path,
                                      const CompiledVariants &variants) {
  QLORA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  TokenStore store(std::move(file), variants.vocabSize);
  QLORA_RETURN_IF_ERROR(store.load(variants));
  QLORA_RETURN_IF_ERROR(store.countLabels());
  if (std::ranges::all_of(store.labelCounts,
                          [](int64_t count) { return count == 0; }))
    return Status::invalid("'{}' has no token in the loss: each label is -100, "
                           "or the first of its row",
                           path);
  return store;
}

StatusOr<const SafetensorsTensor *>
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
  return tensor;
}

Status TokenStore::load(const CompiledVariants &variants) {
  const bool hasRows = file.find("row_offsets") != nullptr;
  QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *first, file.get("input_ids"));
  if (first->shape.size() != (hasRows ? 1 : 3))
    return Status::invalid("'{}': input_ids has the shape {}, expected {}",
                           file.path(), formatShape(first->shape),
                           hasRows ? "[tokens]"
                                   : "[micro_batches, batch, length]");
  QLORA_ASSIGN_OR_RETURN(ids, integers("input_ids", first->shape));
  QLORA_ASSIGN_OR_RETURN(labelIds, integers("labels", first->shape));
  QLORA_RETURN_IF_ERROR(hasRows ? loadOffsets(variants)
                                : loadWhole(first->shape, variants));
  return loadJudgements();
}

Status TokenStore::loadJudgements() {
  if (!file.find("desirable"))
    return Status::ok();
  const auto shape = isWhole() ? std::vector{rows() / batch, batch}
                               : std::vector{rows()};
  QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *tensor,
                         integers("desirable", shape));
  judgements.resize(labelCounts.size());
  answerLengths.resize(labelCounts.size());
  QLORA_RETURN_IF_ERROR(file.read(*tensor, 0, writableBytes(judgements)));
  for (size_t row = 0; row < judgements.size(); ++row)
    if (judgements[row] != 0 && judgements[row] != 1)
      return Status::invalid("'{}': desirable has {} for row {}, which is "
                             "neither 0 nor 1",
                             file.path(), judgements[row], row);
  return Status::ok();
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
        fmt::join(variants.lengths, " or "), batch / variants.sides, rowLength);
  if (file.find("segment_ids")) {
    QLORA_ASSIGN_OR_RETURN(segments, integers("segment_ids", shape));
  }
  if (file.find("position_ids")) {
    QLORA_ASSIGN_OR_RETURN(positions, integers("position_ids", shape));
  }
  labelCounts.resize(static_cast<size_t>(shape[0] * batch));
  return Status::ok();
}

Status TokenStore::loadOffsets(const CompiledVariants &variants) {
  QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *tensor,
                         file.get("row_offsets"));
  if (tensor->dtype != SafetensorsDtype::kI64 || tensor->shape.size() != 1)
    return Status::invalid(
        "'{}': row_offsets expects I64 [rows + 1], but is {} {}", file.path(),
        safetensorsDtypeName(tensor->dtype), formatShape(tensor->shape));
  if (tensor->shape[0] < 2)
    return Status::invalid("'{}' has no rows", file.path());
  offsets.resize(static_cast<size_t>(tensor->shape[0]));
  QLORA_RETURN_IF_ERROR(file.read(*tensor, 0, writableBytes(offsets)));
  const int64_t tokens = ids->shape[0];
  if (offsets.front() != 0 || offsets.back() != tokens ||
      std::ranges::adjacent_find(offsets, std::greater_equal()) !=
          offsets.end())
    return Status::dataLoss("'{}': row_offsets does not increase from 0 to the "
                            "{} tokens of input_ids",
                            file.path(), tokens);
  labelCounts.resize(offsets.size() - 1);
  for (int64_t row = 0; row < rows(); ++row)
    if (length(row) > variants.lengths.back())
      return Status::invalid("'{}': row {} has {} tokens, but max_length is {}",
                             file.path(), row, length(row),
                             variants.lengths.back());
  return Status::ok();
}

std::string TokenStore::placeName(int64_t row, int64_t position) const {
  if (!isWhole())
    return fmt::format("'{}': row {}, position {}", file.path(), row, position);
  return fmt::format("'{}': micro-batch {}, row {}, position {}", file.path(),
                     row / batch, row % batch, position);
}

Status TokenStore::countLabels() {
  ContentHash content;
  for (int64_t first = 0, last = 0; first < rows(); first = last) {
    for (last = first + 1;
         last < rows() && begin(last + 1) - begin(first) <= kWindow; ++last)
      ;
    QLORA_ASSIGN_OR_RETURN(const Tokens tokens, read(first, last));
    tokens.identify(content);
    for (int64_t row = first; row < last; ++row) {
      const auto from = static_cast<size_t>(begin(row) - begin(first));
      const size_t to = from + static_cast<size_t>(length(row));
      labelCounts[static_cast<size_t>(row)] = tokens.targets(from, to);
      if (isUnpaired())
        answerLengths[static_cast<size_t>(row)] = tokens.answer(from, to);
    }
  }
  // The digest also covers the judgements, if there are any.
  if (isUnpaired())
    content.add({reinterpret_cast<const char *>(judgements.data()),
                 judgements.size() * sizeof(int32_t)});
  digest = content.finish();
  return Status::ok();
}

void TokenStore::Tokens::identify(ContentHash &hash) const {
  for (const std::vector<int32_t> *part :
       {&ids, &labels, &positions, &segments})
    hash.add({reinterpret_cast<const char *>(part->data()),
              part->size() * sizeof(int32_t)});
}

StatusOr<std::vector<int32_t>>
TokenStore::readPart(const SafetensorsTensor *tensor, int64_t first,
                     int64_t last) const {
  std::vector<int32_t> values;
  if (!tensor)
    return values;
  values.resize(static_cast<size_t>(begin(last) - begin(first)));
  QLORA_RETURN_IF_ERROR(
      file.read(*tensor, static_cast<uint64_t>(begin(first)) * sizeof(int32_t),
                writableBytes(values)));
  return values;
}

StatusOr<TokenStore::Tokens> TokenStore::read(int64_t first,
                                              int64_t last) const {
  Tokens tokens;
  QLORA_ASSIGN_OR_RETURN(tokens.ids, readPart(ids, first, last));
  QLORA_ASSIGN_OR_RETURN(tokens.labels, readPart(labelIds, first, last));
  QLORA_ASSIGN_OR_RETURN(tokens.positions, readPart(positions, first, last));
  QLORA_ASSIGN_OR_RETURN(tokens.segments, readPart(segments, first, last));
  for (int64_t row = first; row < last; ++row)
    QLORA_RETURN_IF_ERROR(checkRow(
        row, tokens, static_cast<size_t>(begin(row) - begin(first))));
  return tokens;
}

Status TokenStore::checkRow(int64_t row, const Tokens &tokens,
                            size_t begin) const {
  const int64_t size = length(row);
  const auto isToken = [&](int32_t id) { return id >= 0 && id < vocabSize; };
  for (int64_t t = 0; t < size; ++t) {
    const size_t at = begin + static_cast<size_t>(t);
    const int32_t id = tokens.ids[at], label = tokens.labels[at];
    if (!isToken(id))
      return Status::invalid(
          "{}: token id {} is outside the model's vocabulary [0, {}). Fix: use "
          "the model's tokenizer",
          placeName(row, t), id, vocabSize);
    if (label != kNoLabel && !isToken(label))
      return Status::invalid("{}: label {} is neither -100 nor inside the "
                             "model's vocabulary [0, {})",
                             placeName(row, t), label, vocabSize);
    if (positions && (tokens.positions[at] < 0 || tokens.positions[at] >= size))
      return Status::invalid("{}: position_ids has {}, which is outside "
                             "[0, {})",
                             placeName(row, t), tokens.positions[at], size);
    if (segments && tokens.segments[at] < 0)
      return Status::invalid("{}: segment_ids has {}, which is below 0",
                             placeName(row, t), tokens.segments[at]);
  }
  return segments ? checkSegments(row, tokens, begin) : Status::ok();
}

/// Checks that each segment's tokens are consecutive, as attention assumes.
Status TokenStore::checkSegments(int64_t row, const Tokens &tokens,
                                 size_t begin) const {
  std::set<int32_t> begun;
  const auto size = static_cast<size_t>(length(row));
  for (size_t t = 0; t < size; ++t) {
    const size_t at = begin + t;
    const int32_t segment = tokens.segments[at];
    const bool begins = t == 0 || !tokens.continues(at);
    if (begins && segment != 0 && !begun.insert(segment).second)
      return Status::invalid(
          "{}: segment_ids has {} again after other segments; tokens of a "
          "segment must be consecutive",
          placeName(row, static_cast<int64_t>(t)), segment);
  }
  return Status::ok();
}

int64_t TokenStore::Tokens::targets(size_t begin, size_t end) const {
  int64_t count = 0;
  for (size_t t = begin + 1; t < end; ++t)
    count += isTarget(t);
  return count;
}

bool TokenStore::Tokens::isTarget(size_t t) const {
  return labels[t] != kNoLabel && continues(t) && !isPadding(t);
}

int64_t TokenStore::Tokens::answer(size_t begin, size_t end) const {
  size_t first = begin + 1;
  while (first < end && !isTarget(first))
    ++first;
  return static_cast<int64_t>(end - std::min(first, end));
}

void TokenStore::identify(ContentHash &hash) const {
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < rows(); ++row)
    lengths.push_back(length(row));
  hash.add(lengths);
  hash.add(digest);
}

Status TokenStore::place(int64_t row, int64_t line, int64_t offset,
                         int32_t segment, MicroBatch &out) const {
  QLORA_ASSIGN_OR_RETURN(const Tokens tokens, read(row, row + 1));
  const size_t size = tokens.ids.size();
  // The loss is divided by the number of labels that open() counted.
  if (tokens.targets(0, size) != labels(row))
    return Status::dataLoss(
        "'{}': row {} has changed since the run started. Fix: start again, and "
        "do not write the file during a run",
        file.path(), row);
  if (isUnpaired())
    out.desirable[static_cast<size_t>(line)] =
        static_cast<float>(judgements[static_cast<size_t>(row)]);
  const auto first = static_cast<size_t>(line * out.length + offset);
  assert(offset + length(row) <= out.length);
  for (size_t t = 0, to = first; t < size; ++t, ++to) {
    const bool goesOn = t > 0 && tokens.continues(t);
    out.ids[to] = tokens.ids[t];
    out.segments[to] = segments ? tokens.segments[t] : segment;
    if (positions)
      out.positions[to] = tokens.positions[t];
    else
      out.positions[to] = goesOn ? out.positions[to - 1] + 1 : 0;
    if (goesOn && !tokens.isPadding(t))
      out.targets[to - 1] = tokens.labels[t];
  }
  return Status::ok();
}

} // namespace qlora
