// SPDX-License-Identifier: MIT

// Reading, checking, packing and batching of rows files.

#include "runtime/Data/RowsFile.h"

#include <algorithm>
#include <cstring>

#include "runtime/Data/StepPacking.h"
#include "runtime/Data/TokenChecks.h"

namespace qlora {

StatusOr<std::unique_ptr<Dataset>>
RowsFile::open(SafetensorsFile file, const CompiledVariants &shape,
               const DatasetOptions &options) {
  if (options.paddingFree == true && shape.buckets.empty())
    return Status::invalid("padding_free: the program has no token buckets; "
                           "compile it with --padding-free true");
  std::unique_ptr<RowsFile> rows(new RowsFile(shape, options));
  QLORA_RETURN_IF_ERROR(rows->load(file));
  QLORA_RETURN_IF_ERROR(rows->check(file.path()));
  rows->makeUnits();
  if (rows->isPaddingFree())
    rows->packInOrder();
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

Status RowsFile::check(const std::string &path) {
  for (int64_t r = 0; r < rows(); ++r) {
    TokenRow tokens = row(r);
    int64_t size = static_cast<int64_t>(tokens.ids.size());
    if (size > shape.lengths.back())
      return Status::invalid("'{}': row {} has {} tokens, but max_length is "
                             "{}",
                             path, r, size, shape.lengths.back());
    int64_t &labelled = labelCounts.emplace_back();
    for (int64_t t = 0; t < size; ++t) {
      if (!isToken(tokens.ids[t], shape.vocabSize) ||
          !isLabel(tokens.labels[t], shape.vocabSize))
        return badToken(fmt::format("'{}': row {}, position {}", path, r, t),
                        tokens.ids[t], tokens.labels[t], shape.vocabSize);
      labelled += t > 0 && tokens.labels[t] != kNoLabel;
    }
  }
  const bool hasLabels = std::any_of(labelCounts.begin(), labelCounts.end(),
                                     [](int64_t count) { return count > 0; });
  return hasLabels ? Status::ok() : noLabels(path);
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

void RowsFile::identify(ContentHash &hash) const {
  hash.add(offsets);
  hash.add(labelCounts);
}

int64_t RowsFile::labelsOf(std::span<const int64_t> unitNumbers) const {
  int64_t labels = 0;
  for (int64_t number : unitNumbers)
    for (int64_t r : units[number])
      labels += labelCounts[r];
  return labels;
}

/// Padding free: units one after another, as many as the last bucket holds.
void RowsFile::packInOrder() {
  int64_t tokens = shape.buckets.back();
  for (int64_t number = 0; number < unitCount(); ++number) {
    const int64_t length = unitLength(units[number]);
    if (tokens + length > shape.buckets.back()) {
      inOrder.emplace_back();
      tokens = 0;
    }
    inOrder.back().push_back(number);
    tokens += length;
  }
}

int64_t RowsFile::count() const {
  return (unitCount() + shape.batch - 1) / shape.batch;
}

int64_t RowsFile::countInOrder() const {
  return isPaddingFree() ? static_cast<int64_t>(inOrder.size()) : count();
}

void RowsFile::orderFor(int64_t epoch) {
  if (epoch == orderedEpoch)
    return;
  order = shuffledOrder(unitCount(), options.seed, epoch);
  orderedEpoch = epoch;
}

/// The units of the micro-batches that the step has when it is padded, dealt
/// anew.
const StepPlan &RowsFile::planOf(int64_t step, const StepShape &stepShape) {
  if (step == plannedStep && stepShape == plannedShape)
    return plan;
  const int64_t stepsInEpoch = stepsPerEpoch(stepShape.count());
  orderFor(step / stepsInEpoch);
  const int64_t perStep = stepShape.count() * shape.batch;
  const int64_t first = step % stepsInEpoch * perStep;
  const int64_t size = std::min(perStep, unitCount() - first);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < size; ++i)
    lengths.push_back(unitLength(units[order[first + i]]));
  plan = packStep(lengths, {shape.buckets, shape.batch, stepShape.accumulation,
                            stepShape.ranks, shape.costs});
  for (std::vector<int64_t> &numbers : plan)
    for (int64_t &number : numbers)
      number = order[first + number];
  plannedStep = step;
  plannedShape = stepShape;
  return plan;
}

int64_t RowsFile::microBatches(int64_t step, const StepShape &stepShape) {
  if (!isPaddingFree())
    return Dataset::microBatches(step, stepShape);
  return static_cast<int64_t>(planOf(step, stepShape).size()) / stepShape.ranks;
}

void RowsFile::read(int64_t step, int64_t index, const StepShape &stepShape,
                    MicroBatch &out) {
  if (isPaddingFree())
    fillBucket(planOf(step, stepShape)[index], out);
  else
    Dataset::read(step, index, stepShape, out);
}

void RowsFile::readInOrder(int64_t number, MicroBatch &out) {
  if (isPaddingFree())
    fillBucket(lineInOrder(number), out);
  else
    Dataset::readInOrder(number, out);
}

BatchShape RowsFile::shapeOf(int64_t step, int64_t index,
                             const StepShape &stepShape) {
  if (isPaddingFree())
    return {1, bucketOf(planOf(step, stepShape)[index])};
  return Dataset::shapeOf(step, index, stepShape);
}

int64_t RowsFile::labelsOf(int64_t step, int64_t index,
                           const StepShape &stepShape) {
  if (isPaddingFree())
    return labelsOf(planOf(step, stepShape)[index]);
  return Dataset::labelsOf(step, index, stepShape);
}

BatchShape RowsFile::shapeInOrder(int64_t number) {
  if (isPaddingFree())
    return {1, bucketOf(lineInOrder(number))};
  return Dataset::shapeInOrder(number);
}

std::span<const int64_t> RowsFile::lineInOrder(int64_t number) const {
  if (number >= countInOrder())
    return {};
  return inOrder[number];
}

int64_t RowsFile::bucketOf(std::span<const int64_t> unitNumbers) const {
  int64_t tokens = 0;
  for (int64_t number : unitNumbers)
    tokens += unitLength(units[number]);
  return bucketFor(tokens, shape.buckets);
}

/// Segments from `segment` on, at `offset` of line `b`.
void RowsFile::placeUnit(const std::vector<int64_t> &unit, int64_t b,
                         int64_t offset, int32_t segment,
                         MicroBatch &out) const {
  for (int64_t r : unit) {
    placeRow(row(r), b, offset, segment++, out);
    offset += offsets[r + 1] - offsets[r];
  }
}

/// Units in one line, as short as its bucket allows.
void RowsFile::fillBucket(std::span<const int64_t> unitNumbers,
                          MicroBatch &out) const {
  out.clear({1, bucketOf(unitNumbers)});
  int64_t offset = 0;
  int32_t segment = 1;
  for (int64_t number : unitNumbers) {
    placeUnit(units[number], 0, offset, segment, out);
    offset += unitLength(units[number]);
    segment += static_cast<int32_t>(units[number].size());
  }
}

std::vector<int64_t> RowsFile::unitsOf(int64_t epoch, int64_t number) {
  if (epoch >= 0)
    orderFor(epoch);
  const int64_t first = number * shape.batch;
  const int64_t last = std::min<int64_t>(first + shape.batch, unitCount());
  std::vector<int64_t> numbers;
  for (int64_t i = first; i < last; ++i)
    numbers.push_back(epoch >= 0 ? order[i] : i);
  return numbers;
}

BatchShape RowsFile::shapeAt(int64_t epoch, int64_t number) {
  int64_t longest = 0;
  for (int64_t unit : unitsOf(epoch, number))
    longest = std::max(longest, unitLength(units[unit]));
  return {shape.batch, bucketFor(longest, shape.lengths)};
}

int64_t RowsFile::labelsAt(int64_t epoch, int64_t number) {
  return labelsOf(unitsOf(epoch, number));
}

void RowsFile::fill(int64_t epoch, int64_t number, MicroBatch &out) {
  out.clear(shapeAt(epoch, number));
  int64_t line = 0;
  for (int64_t unit : unitsOf(epoch, number))
    placeUnit(units[unit], line++, 0, 1, out);
}

} // namespace qlora
