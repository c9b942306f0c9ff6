// SPDX-License-Identifier: MIT

// Reading, checking, packing and batching of rows files.

#include "runtime/Session/RowsFile.h"

#include <algorithm>
#include <cstring>

#include "runtime/Session/TokenChecks.h"

namespace qlora {

StatusOr<std::unique_ptr<Dataset>>
RowsFile::open(SafetensorsFile file, const DatasetShape &shape,
               const DatasetOptions &options) {
  std::unique_ptr<RowsFile> rows(new RowsFile(shape, options));
  QLORA_RETURN_IF_ERROR(rows->load(file));
  QLORA_RETURN_IF_ERROR(rows->check(file.path()));
  rows->makeUnits();
  return std::unique_ptr<Dataset>(std::move(rows));
}

Status RowsFile::load(const SafetensorsFile &file) {
  QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *first, file.get("input_ids"));
  if (first->shape.size() != 1)
    return Status::invalid("'{}': input_ids has the shape {}, but expects "
                           "[tokens]",
                           file.path(), formatShape(first->shape));
  QLORA_ASSIGN_OR_RETURN(ids, readInt32(file, "input_ids", first->shape));
  QLORA_ASSIGN_OR_RETURN(labels, readInt32(file, "labels", first->shape));
  return loadOffsets(file);
}

Status RowsFile::loadOffsets(const SafetensorsFile &file) {
  QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *tensor,
                         file.get("row_offsets"));
  if (tensor->dtype != SafetensorsDtype::kI64 || tensor->shape.size() != 1)
    return Status::invalid("'{}': row_offsets expects I64 [rows + 1], but is "
                           "{} {}",
                           file.path(), safetensorsDtypeName(tensor->dtype),
                           formatShape(tensor->shape));
  if (tensor->shape[0] < 2)
    return Status::invalid("'{}' has no rows", file.path());
  std::span<const uint8_t> bytes = file.bytes(*tensor);
  offsets.resize(bytes.size() / sizeof(int64_t));
  std::memcpy(offsets.data(), bytes.data(), bytes.size());
  bool isOrdered = std::adjacent_find(offsets.begin(), offsets.end(),
                                      std::greater_equal<>()) == offsets.end();
  if (!isOrdered || offsets.front() != 0 ||
      offsets.back() != static_cast<int64_t>(ids.size()))
    return Status::error(StatusCode::kDataLoss,
                         "'{}': row_offsets does not rise from 0 to the {} "
                         "tokens of input_ids",
                         file.path(), ids.size());
  return Status::ok();
}

Status RowsFile::check(const std::string &path) const {
  int64_t labelled = 0;
  for (int64_t r = 0; r < rows(); ++r) {
    TokenRow tokens = row(r);
    int64_t size = static_cast<int64_t>(tokens.ids.size());
    if (size > shape.lengths.back())
      return Status::invalid("'{}': row {} has {} tokens, but max_length is "
                             "{}",
                             path, r, size, shape.lengths.back());
    for (int64_t t = 0; t < size; ++t) {
      if (!isToken(tokens.ids[t], shape.vocabSize) ||
          !isLabel(tokens.labels[t], shape.vocabSize))
        return badToken(fmt::format("'{}': row {}, position {}", path, r, t),
                        tokens.ids[t], tokens.labels[t], shape.vocabSize);
      labelled += t > 0 && tokens.labels[t] != kNoLabel;
    }
  }
  return labelled > 0 ? Status::ok() : noLabels(path);
}

void RowsFile::makeUnits() {
  // Packed once, in file order, so that every epoch has as many steps.
  std::vector<int64_t> lengths;
  for (int64_t r = 0; r < rows(); ++r)
    lengths.push_back(offsets[r + 1] - offsets[r]);
  std::vector<int64_t> bins(lengths.size());
  if (options.packing)
    bins = packFirstFit(lengths, shape.lengths.back());
  else
    for (size_t r = 0; r < bins.size(); ++r)
      bins[r] = static_cast<int64_t>(r);
  units.resize(*std::max_element(bins.begin(), bins.end()) + 1);
  for (size_t r = 0; r < bins.size(); ++r)
    units[bins[r]].push_back(static_cast<int64_t>(r));
}

TokenRow RowsFile::row(int64_t number) const {
  size_t begin = offsets[number], size = offsets[number + 1] - begin;
  return {std::span(ids).subspan(begin, size),
          std::span(labels).subspan(begin, size)};
}

int64_t RowsFile::unitLength(const std::vector<int64_t> &unit) const {
  int64_t length = 0;
  for (int64_t r : unit)
    length += offsets[r + 1] - offsets[r];
  return length;
}

int64_t RowsFile::count() const {
  int64_t rowsInAll = static_cast<int64_t>(units.size());
  return (rowsInAll + shape.batch - 1) / shape.batch;
}

void RowsFile::fill(int64_t epoch, int64_t number, MicroBatch &out) {
  if (epoch >= 0 && epoch != orderedEpoch) {
    order =
        shuffledOrder(static_cast<int64_t>(units.size()), options.seed, epoch);
    orderedEpoch = epoch;
  }
  int64_t first = number * shape.batch;
  int64_t last = std::min<int64_t>(first + shape.batch, units.size());
  auto unit = [&](int64_t i) -> const std::vector<int64_t> & {
    return units[epoch >= 0 ? order[i] : i];
  };
  int64_t longest = 0;
  for (int64_t i = first; i < last; ++i)
    longest = std::max(longest, unitLength(unit(i)));
  out.clear(shape.batch, *std::lower_bound(shape.lengths.begin(),
                                           shape.lengths.end(), longest));
  for (int64_t i = first; i < last; ++i) {
    int64_t offset = 0;
    int32_t segment = 0;
    for (int64_t r : unit(i)) {
      placeRow(row(r), i - first, offset, ++segment, out);
      offset += offsets[r + 1] - offsets[r];
    }
  }
}

} // namespace qlora
