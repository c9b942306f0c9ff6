// SPDX-License-Identifier: MIT

// Micro-batches from a schedule and a store.

#include "runtime/Data/Dataset.h"

#include <algorithm>

namespace qlora {

StatusOr<std::unique_ptr<Dataset>> openDataset(const std::string &path,
                                               const CompiledVariants &variants,
                                               const ScheduleOptions &options) {
  QLORA_ASSIGN_OR_RETURN(TokenStore store, TokenStore::open(path, variants));
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < store.rows(); ++row)
    lengths.push_back(store.length(row));
  QLORA_ASSIGN_OR_RETURN(auto schedule,
                         Schedule::make(std::move(lengths), variants,
                                        store.isWhole(), options));
  return std::make_unique<Dataset>(std::move(store), std::move(schedule));
}

Status Dataset::fill(const BatchLayout &layout, MicroBatch &out) const {
  out.clear(layout.shape);
  for (size_t line = 0; line < layout.lines.size(); ++line) {
    int64_t offset = 0;
    int32_t segment = 1;
    for (int64_t row : layout.lines[line]) {
      QLORA_RETURN_IF_ERROR(store.place(row, static_cast<int64_t>(line), offset,
                                        segment++, out));
      offset += store.length(row);
    }
  }
  return Status::ok();
}

int64_t Dataset::labelsOf(const BatchLayout &layout) const {
  int64_t labels = 0;
  for (const std::vector<int64_t> &line : layout.lines)
    for (int64_t row : line)
      labels += store.labels(row);
  return labels;
}

std::optional<int64_t> Dataset::mostLabels(int64_t step, int64_t k,
                                           const StepShape &shape) {
  const int64_t first = k * shape.ranks;
  std::optional<BatchShape> common;
  int64_t most = 0;
  for (int64_t index = first; index < first + shape.ranks; ++index) {
    const BatchLayout layout = rule->at(step, index, shape);
    if (common && layout.shape != *common)
      return std::nullopt;
    common = layout.shape;
    most = std::max(most, labelsOf(layout));
  }
  return most;
}

RowMatches countRowMatches(const MicroBatch &batch,
                           std::span<const int32_t> correct) {
  RowMatches matches;
  for (int64_t b = 0; b < batch.batch; ++b) {
    int64_t begin = b * batch.length, end = begin + batch.length;
    for (int64_t t = begin; t < end;) {
      int64_t labelled = 0, right = 0, next = t;
      for (; next < end && batch.segments[next] == batch.segments[t]; ++next) {
        bool hasTarget = batch.targets[next] != kNoLabel;
        labelled += hasTarget;
        right += hasTarget && correct[next] != 0;
      }
      matches.rows += labelled > 0;
      matches.matched += labelled > 0 && right == labelled;
      t = next;
    }
  }
  return matches;
}

} // namespace qlora
