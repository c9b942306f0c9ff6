// SPDX-License-Identifier: MIT

// Micro-batches of training and evaluation data: the rows of a file
// (TokenStore.h) in the order of a schedule (Schedule.h).

#ifndef QLORA_RUNTIME_DATA_DATASET_H
#define QLORA_RUNTIME_DATA_DATASET_H

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/Status.h"
#include "runtime/Data/Schedule.h"
#include "runtime/Data/TokenStore.h"
#include "runtime/Device/MicroBatch.h"

namespace qlora {

/// Used by one thread. The same on every rank for the same file and seed.
class Dataset {
public:
  Dataset(TokenStore store, std::unique_ptr<Schedule> schedule)
      : store(std::move(store)), rule(std::move(schedule)) {}

  Schedule &schedule() { return *rule; }
  /// Rows of text of one pass, for messages.
  int64_t rows() const { return store.rows(); }
  /// Adds the length and labels of all that it gives.
  void identify(ContentHash &hash) const { store.identify(hash); }

  /// The micro-batches of Schedule::at() and inOrder().
  Status read(int64_t step, int64_t index, const StepShape &shape,
              MicroBatch &out) {
    return fill(rule->at(step, index, shape), out);
  }
  Status readInOrder(int64_t number, MicroBatch &out) {
    return fill(rule->inOrder(number), out);
  }

  /// How many labels read() gives, from counts that were made once.
  int64_t labelsOf(int64_t step, int64_t index, const StepShape &shape) {
    return labelsOf(rule->at(step, index, shape));
  }
  /// The labels of whichever rank has most in micro-batch k of `step`; nothing
  /// where ranks have other shapes than each other there. What all ranks know
  /// alike, without a message.
  std::optional<int64_t> mostLabels(int64_t step, int64_t k,
                                    const StepShape &shape);

private:
  Status fill(const BatchLayout &layout, MicroBatch &out) const;
  int64_t labelsOf(const BatchLayout &layout) const;

  TokenStore store;
  std::unique_ptr<Schedule> rule;
};

/// Opens either kind of file and checks all of it.
StatusOr<std::unique_ptr<Dataset>> openDataset(const std::string &path,
                                               const CompiledVariants &variants,
                                               const ScheduleOptions &options);

/// Of rows with labelled targets, how many have only argmax targets: what
/// greedy decoding would reproduce. `correct`: 1 where the target of a token
/// is the argmax, [batch, length]. A row is one segment of a micro-batch.
struct RowMatches {
  int64_t rows = 0;
  int64_t matched = 0;
};
RowMatches countRowMatches(const MicroBatch &batch,
                           std::span<const int32_t> correct);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_DATASET_H
