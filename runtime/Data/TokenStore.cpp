// SPDX-License-Identifier: MIT

// Reads and checks the tokens of token files and rows files.

#include "runtime/Data/TokenStore.h"

#include <algorithm>
#include <cassert>
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

/// Calls `visit(i, value)` for each value of a tensor; reads it in windows.
template <typename T, typename Visit>
static Status
visitValues(const SafetensorsFile &file, const SafetensorsTensor &tensor,
            const std::function<Status()> &often, const Visit &visit) {
  std::vector<T> window;
  const int64_t count = tensor.elementCount();
  for (int64_t i = 0; i < count;) {
    QLORA_RETURN_IF_ERROR(often());
    window.resize(static_cast<size_t>(std::min(kWindow, count - i)));
    QLORA_RETURN_IF_ERROR(file.read(
        tensor, static_cast<uint64_t>(i) * sizeof(T), writableBytes(window)));
    for (T value : window)
      QLORA_RETURN_IF_ERROR(visit(i++, value));
  }
  return Status::ok();
}

StatusOr<TokenStore> TokenStore::open(const std::string &path,
                                      const std::string &name,
                                      const CompiledVariants &variants) {
  auto file = SafetensorsFile::open(path);
  if (!file.isOk())
    return name == path ? file.status() : file.status().withContext(name);
  TokenStore store(std::move(*file), name, variants.vocabSize);
  QLORA_RETURN_IF_ERROR(store.named(store.load(variants)));
  return store;
}

/// Names the user's file in an error, which names the cached one.
Status TokenStore::named(const Status &status) const {
  return status.isOk() || name == file.path() ? status
                                              : status.withContext(name);
}

std::string TokenStore::indexKey() const {
  const FileIdentity &is = file.identity();
  return fmt::format("{} {} {} {} {} {}", is.bytes, is.inode, is.modified,
                     is.changed, index.longest(), vocabSize);
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
  QLORA_RETURN_IF_ERROR(hasRows ? checkOffsets()
                                : checkWhole(first->shape, variants));
  RowIndex::Shape shape;
  shape.isWhole = !hasRows;
  shape.rows =
      hasRows ? offsets->shape[0] - 1 : first->shape[0] * first->shape[1];
  shape.longest = hasRows ? variants.lengths.back() : first->shape[2];
  shape.isJudged = file.find("desirable") != nullptr;
  if (shape.isJudged) {
    QLORA_ASSIGN_OR_RETURN(
        judgements,
        integers("desirable", hasRows ? std::vector{shape.rows}
                                      : std::vector{first->shape[0], batch}));
  }
  index = RowIndex(shape);
  return Status::ok();
}

Status TokenStore::checkWhole(const std::vector<int64_t> &shape,
                              const CompiledVariants &variants) {
  batch = shape[1];
  if (shape[0] == 0)
    return Status::invalid("'{}' has no micro-batches", file.path());
  if (batch != variants.batch ||
      !std::ranges::binary_search(variants.lengths, shape[2]))
    return Status::invalid(
        "'{}' has micro-batches of {} x {} tokens, but the program was "
        "compiled for {} x {}; compile again with "
        "--per-device-train-batch-size {} --max-length {}",
        file.path(), batch, shape[2], variants.batch,
        fmt::join(variants.lengths, " or "), batch / variants.sides, shape[2]);
  if (file.find("segment_ids")) {
    QLORA_ASSIGN_OR_RETURN(segments, integers("segment_ids", shape));
  }
  if (file.find("position_ids")) {
    QLORA_ASSIGN_OR_RETURN(positions, integers("position_ids", shape));
  }
  return Status::ok();
}

Status TokenStore::checkOffsets() {
  QLORA_ASSIGN_OR_RETURN(offsets, file.get("row_offsets"));
  if (offsets->dtype != SafetensorsDtype::kI64 || offsets->shape.size() != 1)
    return Status::invalid(
        "'{}': row_offsets expects I64 [rows + 1], but is {} {}", file.path(),
        safetensorsDtypeName(offsets->dtype), formatShape(offsets->shape));
  if (offsets->shape[0] < 2)
    return Status::invalid("'{}' has no rows", file.path());
  return Status::ok();
}

Status TokenStore::scan(const Often &often) {
  if (offsets)
    QLORA_RETURN_IF_ERROR(named(scanOffsets(often)));
  if (judgements)
    QLORA_RETURN_IF_ERROR(named(scanJudgements(often)));
  return named(scanTokens(often));
}

Status TokenStore::scanOffsets(const Often &often) {
  const int64_t tokens = ids->shape[0];
  int64_t begin = 0;
  return visitValues<
      int64_t>(file, *offsets, often, [&](int64_t i, int64_t end) {
    if (i == 0 ? end != 0 : end <= begin || (i == rows() && end != tokens))
      return Status::dataLoss("'{}': row_offsets does not increase from 0 to "
                              "the {} tokens of input_ids",
                              file.path(), tokens);
    if (end - begin > index.longest())
      return Status::invalid("'{}': row {} has {} tokens, but max_length is {}",
                             file.path(), i - 1, end - begin, index.longest());
    if (i > 0)
      index.addLength(i - 1, begin, end - begin);
    begin = end;
    return Status::ok();
  });
}

Status TokenStore::scanJudgements(const Often &often) {
  return visitValues<int32_t>(
      file, *judgements, often, [&](int64_t row, int32_t is) {
        if (is != 0 && is != 1)
          return Status::invalid("'{}': desirable has {} for row {}, which is "
                                 "neither 0 nor 1",
                                 file.path(), is, row);
        index.addJudgement(row, is == 1);
        return Status::ok();
      });
}

std::string TokenStore::placeName(int64_t row, int64_t position) const {
  if (!isWhole())
    return fmt::format("'{}': row {}, position {}", file.path(), row, position);
  return fmt::format("'{}': micro-batch {}, row {}, position {}", file.path(),
                     row / batch, row % batch, position);
}

Status TokenStore::scanTokens(const Often &often) {
  ContentHash content;
  bool isLabelled = false;
  for (int64_t first = 0, last = 0; first < rows(); first = last) {
    QLORA_RETURN_IF_ERROR(often());
    int64_t size = length(first);
    for (last = first + 1; last < rows() && (size += length(last)) <= kWindow;
         ++last)
      ;
    QLORA_ASSIGN_OR_RETURN(const Tokens tokens, read(first, last));
    tokens.identify(content);
    size_t begin = 0;
    for (int64_t row = first; row < last; ++row) {
      const size_t end = begin + static_cast<size_t>(length(row));
      const int64_t labels = tokens.targets(begin, end);
      isLabelled = isLabelled || labels > 0;
      index.addLabels(row, labels);
      if (isUnpaired())
        index.addAnswer(row, tokens.answer(begin, end));
      begin = end;
    }
  }
  if (!isLabelled)
    return Status::invalid("'{}' has no token in the loss: each label is -100, "
                           "or the first of its row",
                           file.path());
  // The digest also covers the judgements, if there are any.
  if (isUnpaired())
    content.addEach<int32_t>(
        rows(), [&](int64_t row) { return index.isDesirable(row); });
  index.setDigest(content.finish());
  return Status::ok();
}

void TokenStore::Tokens::identify(ContentHash &hash) const {
  for (const std::vector<int32_t> *part :
       {&ids, &labels, &positions, &segments})
    hash.add({reinterpret_cast<const char *>(part->data()),
              part->size() * sizeof(int32_t)});
}

StatusOr<std::vector<int32_t>>
TokenStore::readPart(const SafetensorsTensor *tensor, int64_t begin,
                     int64_t count) const {
  std::vector<int32_t> values;
  if (!tensor)
    return values;
  values.resize(static_cast<size_t>(count));
  QLORA_RETURN_IF_ERROR(
      file.read(*tensor, static_cast<uint64_t>(begin) * sizeof(int32_t),
                writableBytes(values)));
  return values;
}

StatusOr<TokenStore::Tokens> TokenStore::read(int64_t first,
                                              int64_t last) const {
  const int64_t begin = index.begin(first);
  int64_t count = 0;
  for (int64_t row = first; row < last; ++row)
    count += length(row);
  Tokens tokens;
  QLORA_ASSIGN_OR_RETURN(tokens.ids, readPart(ids, begin, count));
  QLORA_ASSIGN_OR_RETURN(tokens.labels, readPart(labelIds, begin, count));
  QLORA_ASSIGN_OR_RETURN(tokens.positions, readPart(positions, begin, count));
  QLORA_ASSIGN_OR_RETURN(tokens.segments, readPart(segments, begin, count));
  size_t at = 0;
  for (int64_t row = first; row < last; ++row) {
    QLORA_RETURN_IF_ERROR(checkRow(row, tokens, at));
    at += static_cast<size_t>(length(row));
  }
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
  hash.addEach<int64_t>(rows(), [&](int64_t row) { return length(row); });
  hash.add(index.digest());
}

Status TokenStore::place(int64_t row, int64_t line, int64_t offset,
                         int32_t segment, MicroBatch &out) const {
  QLORA_ASSIGN_OR_RETURN(const Tokens tokens, read(row, row + 1));
  const size_t size = tokens.ids.size();
  // The loss is divided by the number of labels that scan() counted.
  if (tokens.targets(0, size) != labels(row))
    return Status::dataLoss(
        "'{}': row {} has changed since the run started. Fix: start again, and "
        "do not write the file during a run",
        file.path(), row);
  if (isUnpaired())
    out.desirable[static_cast<size_t>(line)] =
        static_cast<float>(index.isDesirable(row));
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
