// SPDX-License-Identifier: MIT

// Determines which rows share a micro-batch, from the lengths of rows alone.
// The result is equal on all ranks for the same file and seed. A schedule holds
// at most 12 bytes per row (4 if rows are padded without --packing).
//
// A step has K N micro-batches: K accumulated micro-batches on each of N ranks,
// where ranks with the same rows count as one. MicroBatchAssignment.h assigns
// them to ranks. There are three orders:
//
//   whole         a token file's own order; it restarts at its end, even
//                 inside a step
//   padded        rows, or packs of rows with --packing, are shuffled with the
//                 seed in each epoch, unless --train-sampling-strategy is
//                 sequential; each is a sequence of the shortest compiled
//                 length that fits
//   step packing  the rows of a padded step in new micro-batches of one
//                 sequence each (StepPacking.h)
//
// Except in the order `whole`, the last step of an epoch has the remaining
// rows. Missing rows and micro-batches are unlabelled padding, which does not
// affect the mean loss.
//
// In lockstep, ranks run the same entries at the same time. The k-th
// micro-batches of all ranks have the shape of the largest. An evaluation reads
// the file in order, N micro-batches at a time.

#ifndef QLORA_RUNTIME_DATA_SCHEDULE_H
#define QLORA_RUNTIME_DATA_SCHEDULE_H

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Data/DatasetRows.h"
#include "runtime/Data/MicroBatchAssignment.h"
#include "runtime/Device/MicroBatch.h"
#include "runtime/Module/CompiledVariants.h"

namespace qlora {

/// The micro-batches of a step: K on each of N ranks that have their own rows.
struct StepShape {
  int64_t accumulation = 1;
  int64_t ranks = 1;
  bool inLockstep = false; ///< each entry has collectives of several ranks
  /// Whether rows are packed as if one rank ran all micro-batches.
  bool assignsAsOne = false;
  /// Relative speed of each rank, above 0. Empty if equal, and in lockstep.
  std::vector<double> speeds = {};

  int64_t count() const { return accumulation * ranks; }
  bool operator==(const StepShape &) const = default;
};

/// The rows of a micro-batch. In a sequence, rows follow each other without
/// gaps, and the remaining tokens are padding.
struct BatchLayout {
  BatchShape shape;
  /// Per sequence: the rows in it. A row that takes several sequences, such as
  /// a preference pair (Options::linesOfRow), is listed for its first sequence,
  /// and its other sequences have no element.
  std::vector<std::vector<int64_t>> lines;
};

struct ScheduleOptions {
  uint64_t seed = 0;
  bool packing = false; ///< only for rows files
  /// Whether to use step packing, which needs a rows file and token buckets.
  /// Unset: used if the program has buckets.
  std::optional<bool> stepPacking = std::nullopt;
  bool shuffles = true; ///< false: every epoch has the order of the file
};

/// Used by one thread.
class Schedule {
public:
  virtual ~Schedule() = default;

  /// Makes the schedule of rows, each at most of the longest compiled length.
  /// Step packing without token buckets is an error.
  static StatusOr<std::unique_ptr<Schedule>>
  make(std::shared_ptr<const DatasetRows> rows,
       const CompiledVariants &variants, const ScheduleOptions &options);

  /// Micro-batches of one padded pass over the file; at least 1.
  virtual int64_t count() const = 0;
  /// Micro-batches of one pass in file order, possibly fewer than count().
  virtual int64_t countInOrder() const { return count(); }
  /// Micro-batches of `step` on all ranks: K N, or a smaller multiple of N.
  virtual int64_t microBatches(int64_t, const StepShape &shape) {
    return shape.count();
  }
  MicroBatchAssignment deal(int64_t step, const StepShape &shape) {
    return {microBatches(step, shape), shape.ranks, shape.speeds};
  }
  /// Returns micro-batch `index` of `step`; `index` is below microBatches().
  BatchLayout at(int64_t step, int64_t index, const StepShape &shape);
  /// Returns micro-batch `number` in file order, or padding after the last.
  BatchLayout inOrder(int64_t number, const StepShape &shape);
  /// Return the micro-batches that run at the same time in lockstep. round():
  /// numbers k N to k N + N - 1 of a step. lastRound(): each rank's last one.
  /// roundInOrder(): those that run with `number` in file order.
  std::vector<BatchLayout> round(int64_t step, int64_t k,
                                 const StepShape &shape);
  std::vector<BatchLayout> lastRound(int64_t step, const StepShape &shape);
  std::vector<BatchLayout> roundInOrder(int64_t number, const StepShape &shape);

  /// Optimizer steps of an epoch; a step has `perStep` = K N micro-batches.
  int64_t stepsPerEpoch(int64_t perStep) const;
  /// Epochs completed after `steps` steps, as Hugging Face's Trainer counts.
  double epochAfter(int64_t steps, int64_t perStep) const;

protected:
  /// Returns micro-batch `index` of `step` in the smallest shape for its rows.
  virtual BatchLayout smallestAt(int64_t step, int64_t index,
                                 const StepShape &shape) = 0;
  virtual BatchLayout smallestInOrder(int64_t number) = 0;
  /// Whether epochs end with a partial step; if not, a step may cross epochs.
  virtual bool endsEpochs() const { return true; }
};

/// Permutes `order`; the permutation depends on its size, seed and epoch only.
void shuffle(std::span<uint32_t> order, uint64_t seed, int64_t epoch);
/// Returns a permutation of [0, count) that depends on the arguments only.
std::vector<uint32_t> shuffledOrder(int64_t count, uint64_t seed,
                                    int64_t epoch);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_SCHEDULE_H
