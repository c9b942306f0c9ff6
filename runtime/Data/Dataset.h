// SPDX-License-Identifier: MIT

// Micro-batches of training and evaluation data: rows (DatasetRows.h) in the
// order of a schedule (Schedule.h).

#ifndef QLORA_RUNTIME_DATA_DATASET_H
#define QLORA_RUNTIME_DATA_DATASET_H

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/Status.h"
#include "runtime/Data/DatasetRows.h"
#include "runtime/Data/Schedule.h"
#include "runtime/Device/MicroBatch.h"
#include "runtime/Options/DataValues.h"

namespace qlora {

/// Used by one thread. Identical on every rank for the same files and seed.
class Dataset {
public:
  Dataset(std::shared_ptr<const DatasetRows> rows,
          std::unique_ptr<Schedule> schedule)
      : data(std::move(rows)), rule(std::move(schedule)) {}

  Schedule &schedule() { return *rule; }
  /// Rows of one pass, for messages.
  int64_t rows() const { return data->count(); }
  /// Tokens of a row, tokens of its longest sequence, and its labelled tokens.
  int64_t tokens(int64_t row) const { return data->tokens(row); }
  int64_t length(int64_t row) const { return data->length(row); }
  int64_t labels(int64_t row) const { return data->labels(row); }
  bool isWhole() const { return data->isWhole(); }
  /// Adds the tokens and labels of all rows to `hash`.
  void identify(ContentHash &hash) const;

  /// Reads micro-batch `index` of `step`, as Schedule::at() selects it.
  Status read(int64_t step, int64_t index, const StepShape &shape,
              MicroBatch &out) {
    return fill(rule->at(step, index, shape), out);
  }
  Status readInOrder(int64_t number, MicroBatch &out,
                     const StepShape &shape = {}) {
    return fill(rule->inOrder(number, shape), out);
  }

  /// Reads one row into a micro-batch of its own length.
  Status readRow(int64_t row, MicroBatch &out) const {
    return fill({{data->sides, data->length(row)}, {{row}}}, out);
  }

  /// Labels of the micro-batch that read() returns, from cached counts. If
  /// mismatched answers are cut, the count is an upper bound.
  int64_t labelsOf(int64_t step, int64_t index, const StepShape &shape) {
    return labelsOf(rule->at(step, index, shape));
  }
  /// Maximum labels that any rank has in its k-th micro-batch of `step`;
  /// nullopt unless in lockstep. Computed without communication.
  std::optional<int64_t> mostLabels(int64_t step, int64_t k,
                                    const StepShape &shape) {
    return shape.inLockstep ? mostLabelsOf(rule->round(step, k, shape))
                            : std::nullopt;
  }
  /// Returns the maximum labels that any rank has in its last micro-batch;
  /// nullopt if the shapes of these micro-batches differ.
  std::optional<int64_t> mostLabelsOfLast(int64_t step,
                                          const StepShape &shape) {
    return mostLabelsOf(rule->lastRound(step, shape));
  }
  /// Returns the maximum labels of the micro-batches, in file order, that the
  /// ranks read together with `number`; nullopt unless in lockstep.
  std::optional<int64_t> mostLabelsInOrder(int64_t number,
                                           const StepShape &shape);

  /// Mean labels per micro-batch of a step, over all ranks, without the empty
  /// micro-batches of an epoch's last step. Slow: computes every layout.
  double meanLabels(int64_t step, const StepShape &shape);

  /// Fraction of padding in an epoch. Only the first steps of a long epoch are
  /// counted, until they have 4,096 micro-batches. Returns nullopt for a token
  /// file, whose padding is fixed.
  std::optional<double> paddingShare(const StepShape &shape);

private:
  Status fill(const BatchLayout &layout, MicroBatch &out) const;
  int64_t labelsOf(const BatchLayout &layout) const;
  std::optional<int64_t>
  mostLabelsOf(const std::vector<BatchLayout> &round) const;
  /// Number of sequences in a micro-batch that contain a row's answer.
  int64_t timesOfRow() const {
    return data->hasMismatched && !data->isWhole() ? 2 : 1;
  }

  std::shared_ptr<const DatasetRows> data; ///< the schedule reads it too
  std::unique_ptr<Schedule> rule;
};

/// Files of one dataset, or of a training and a disjoint validation dataset.
struct DataMix {
  std::vector<WeightedPath> files;
  std::vector<std::string> names = {}; ///< for errors; empty: the paths
  double validationSize = 0;           ///< argument of selectRows()
  /// The opened files: set by openStores(), indexed by makeIndexes().
  std::shared_ptr<DatasetRows::Stores> stores = nullptr;
};
/// Opens the files of a mix, and checks that they suit the program.
Status openStores(DataMix &mix, const CompiledVariants &variants);

struct DataParts {
  std::unique_ptr<Dataset> training, validation; ///< `validation` may be null
};
/// Makes the datasets of a mix whose files have indexes.
StatusOr<DataParts> makeDatasets(const DataMix &mix,
                                 const CompiledVariants &variants,
                                 const ScheduleOptions &options);
/// Does all of this on a single rank.
StatusOr<DataParts> openMix(DataMix mix, const CompiledVariants &variants,
                            const ScheduleOptions &options);

/// Opens a token file or a rows file and checks all of it.
StatusOr<std::unique_ptr<Dataset>> openDataset(const std::string &path,
                                               const CompiledVariants &variants,
                                               const ScheduleOptions &options);

/// Counts rows that greedy decoding would reproduce: each label is the argmax.
/// `correct`, [batch, length], is 1 if a token's target is the argmax.
/// Mismatched answers and unlabelled rows do not count.
struct RowMatches {
  int64_t rows = 0;
  int64_t matched = 0;
  int64_t labels = 0; ///< all labels of the rows
  int64_t right = 0;  ///< those labels that are the argmax
};
RowMatches countRowMatches(const MicroBatch &batch,
                           std::span<const int32_t> correct);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_DATASET_H
