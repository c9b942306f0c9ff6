// SPDX-License-Identifier: MIT

// Micro-batches of training and evaluation data: rows (RowSelection.h) of files
// (TokenStore.h) in the order of a schedule (Schedule.h).

#ifndef QLORA_RUNTIME_DATA_DATASET_H
#define QLORA_RUNTIME_DATA_DATASET_H

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/DataValues.h"
#include "runtime/Base/Status.h"
#include "runtime/Data/Schedule.h"
#include "runtime/Data/TokenStore.h"
#include "runtime/Device/MicroBatch.h"

namespace qlora {

/// The files of a dataset, and those of its rows that it has. A pair of answers
/// is one row, of `sides` in the file.
struct DatasetRows {
  using Stores = std::vector<TokenStore>;

  /// Shared by the parts of a split.
  std::shared_ptr<const Stores> stores;
  /// Numbers that go on from one file to the next. Empty: all rows once.
  std::vector<int64_t> chosen = {};
  int64_t sides = 1;
  /// Half of the lines have mismatched answers (MismatchedAnswers.h).
  bool hasMismatched = false;
  bool hasOneSegment = false; ///< MicroBatch::hasOneSegment, of all

  int64_t count() const;
  /// Of the longest side.
  int64_t length(int64_t row) const;
  int64_t tokens(int64_t row) const;
  int64_t labels(int64_t row) const;
  int64_t answer(int64_t row) const;
  int64_t sumOfSides(int64_t row,
                     int64_t (TokenStore::*of)(int64_t) const) const;
  /// Of a token file, in its order.
  bool isWhole() const { return stores->front().isWhole(); }
  /// The file that has a row, and the number in it of the row or its first side.
  std::pair<const TokenStore *, int64_t> find(int64_t row) const;
};

/// Used by one thread. The same on every rank for the same files and seed.
class Dataset {
public:
  Dataset(DatasetRows rows, std::unique_ptr<Schedule> schedule)
      : data(std::move(rows)), rule(std::move(schedule)) {}

  Schedule &schedule() { return *rule; }
  /// Rows of text of one pass, for messages.
  int64_t rows() const { return data.count(); }
  /// Tokens of a row, of its longest line, and those of them that are targets.
  int64_t tokens(int64_t row) const { return data.tokens(row); }
  int64_t length(int64_t row) const { return data.length(row); }
  int64_t labels(int64_t row) const { return data.labels(row); }
  bool isWhole() const { return data.isWhole(); }
  /// Adds all that it gives, to the last token.
  void identify(ContentHash &hash) const;

  /// The micro-batches of Schedule::at() and inOrder(); without a shape, those
  /// of one rank.
  Status read(int64_t step, int64_t index, const StepShape &shape,
              MicroBatch &out) {
    return fill(rule->at(step, index, shape), out);
  }
  Status readInOrder(int64_t number, MicroBatch &out,
                     const StepShape &shape = {}) {
    return fill(rule->inOrder(number, shape), out);
  }

  /// How many labels read() gives, from counts that were made once; at least as
  /// many where a mismatched answer is cut.
  int64_t labelsOf(int64_t step, int64_t index, const StepShape &shape) {
    return labelsOf(rule->at(step, index, shape));
  }
  /// The labels of whichever rank has most in the k-th micro-batch of `step`,
  /// which run together; nothing but in lockstep. What all ranks know alike,
  /// without a message.
  std::optional<int64_t> mostLabels(int64_t step, int64_t k,
                                    const StepShape &shape) {
    return shape.inLockstep ? mostLabelsOf(rule->round(step, k, shape))
                            : std::nullopt;
  }
  /// The same of the last one of each rank; nothing where ranks have other shapes
  /// than each other there.
  std::optional<int64_t> mostLabelsOfLast(int64_t step,
                                          const StepShape &shape) {
    return mostLabelsOf(rule->lastRound(step, shape));
  }
  /// The same of the micro-batches that ranks read at once in file order, with
  /// the `number`-th: nothing but in lockstep.
  std::optional<int64_t> mostLabelsInOrder(int64_t number,
                                           const StepShape &shape);

  /// Labels of a micro-batch of the step on average, over all ranks, of those
  /// that have rows: the last step of an epoch may have some without. Looks at
  /// every layout.
  double meanLabels(int64_t step, const StepShape &shape);

  /// The share of padding in the micro-batches of an epoch, of the first
  /// thousands where there are more; nothing for a token file, whose padding
  /// is its maker's.
  std::optional<double> paddingShare(const StepShape &shape);

private:
  Status fill(const BatchLayout &layout, MicroBatch &out) const;
  int64_t labelsOf(const BatchLayout &layout) const;
  std::optional<int64_t>
  mostLabelsOf(const std::vector<BatchLayout> &round) const;
  /// How often a row's answer is in its micro-batch.
  int64_t timesOfRow() const {
    return data.hasMismatched && !data.isWhole() ? 2 : 1;
  }

  DatasetRows data;
  std::unique_ptr<Schedule> rule;
};

/// Files as one, or as two parts that have no row in common.
struct DataMix {
  std::vector<WeightedPath> files;
  std::vector<std::string> names = {}; ///< for errors; empty: the paths
  double validationSize = 0;           ///< as in selectRows()
};
struct DataParts {
  std::unique_ptr<Dataset> training, validation; ///< the latter may be null
};
StatusOr<DataParts> openMix(const DataMix &mix, const CompiledVariants &variants,
                            const ScheduleOptions &options);

/// Opens either kind of file and checks all of it.
StatusOr<std::unique_ptr<Dataset>> openDataset(const std::string &path,
                                               const CompiledVariants &variants,
                                               const ScheduleOptions &options);

/// Of rows with labelled targets, how many have only argmax targets: what
/// greedy decoding would reproduce. `correct`: 1 where the target of a token
/// is the argmax, [batch, length]. A row is one segment of a micro-batch;
/// mismatched answers are nobody's.
struct RowMatches {
  int64_t rows = 0;
  int64_t matched = 0;
  int64_t labels = 0; ///< of the rows
  int64_t right = 0;  ///< of the labels
};
RowMatches countRowMatches(const MicroBatch &batch,
                           std::span<const int32_t> correct);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_DATASET_H
