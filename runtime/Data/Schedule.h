// SPDX-License-Identifier: MIT

// Determines which rows share a micro-batch, from their lengths alone. It is
// known before any token is read, and equal on every rank for the same file and
// seed.
//
// Micro-batch i of step s is number s K N + i of a pass, for K accumulated
// micro-batches on each of N ranks; ranks with the same rows count as one.
// MicroBatchAssignment.h assigns micro-batches to ranks. Three orders:
//
//   whole         a token file's own order; it restarts at its end, even
//                 inside a step
//   padded        rows are shuffled with the seed in each epoch, or packed
//                 and then shuffled, each in a sequence of the shortest
//                 compiled length that fits
//   step packing  the rows of a padded step in new micro-batches of one
//                 sequence each (StepPacking.h)
//
// The last step of an epoch has the remaining rows. Missing rows and
// micro-batches are padding without labels, which adds nothing to the mean loss
// over labelled tokens.
//
// In lockstep, ranks run the same entries at the same time. The k-th
// micro-batches of all ranks have the shape of the largest; so do numbers i N
// to i N + N - 1 of a pass in file order.

#ifndef QLORA_RUNTIME_DATA_SCHEDULE_H
#define QLORA_RUNTIME_DATA_SCHEDULE_H

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Data/MicroBatchAssignment.h"
#include "runtime/Device/MicroBatch.h"
#include "runtime/Module/CompiledVariants.h"

namespace qlora {

/// The micro-batches of a step: K on each of N ranks that have their own rows.
struct StepShape {
  int64_t accumulation = 1;
  int64_t ranks = 1;
  bool inLockstep = false; ///< every entry has collectives of several ranks
  /// Rows share micro-batches as if one rank had all of them.
  bool assignsAsOne = false;
  /// Relative speed of each rank, above 0; empty if all are equal, as in
  /// lockstep.
  std::vector<double> speeds = {};

  int64_t count() const { return accumulation * ranks; }
  bool operator==(const StepShape &) const = default;
};

/// The rows of a micro-batch. Rows of a sequence are consecutive; the rest is
/// padding.
struct BatchLayout {
  BatchShape shape;
  /// At most shape.batch; for rows of several sequences, the first of each.
  std::vector<std::vector<int64_t>> lines;
};

struct ScheduleOptions {
  uint64_t seed = 0;
  bool packing = false; ///< rows files only
  /// Rows files only; needs buckets. Empty: if there are any.
  std::optional<bool> stepPacking = std::nullopt;
  /// Tokens of each row's answer, if the micro-batch also has mismatched
  /// answers (KtoKlPairs.h), which share its length.
  std::vector<int64_t> answers = {};
};

/// Used by one thread.
class Schedule {
public:
  virtual ~Schedule() = default;

  /// `lengths` of the rows are at most the longest compiled length. `isWhole`:
  /// in the file's order. Step packing without token buckets is an error.
  static StatusOr<std::unique_ptr<Schedule>>
  make(std::vector<int64_t> lengths, const CompiledVariants &variants,
       bool isWhole, const ScheduleOptions &options);

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
  /// Micro-batch `index` of `step`; `index` is below microBatches().
  BatchLayout at(int64_t step, int64_t index, const StepShape &shape);
  /// Micro-batch `number` in file order; padding past countInOrder().
  BatchLayout inOrder(int64_t number, const StepShape &shape);
  /// Micro-batches k N to k N + N - 1 of a step, which run together in
  /// lockstep; the last one of each rank; the ones that run together with
  /// `number` in file order.
  std::vector<BatchLayout> round(int64_t step, int64_t k,
                                 const StepShape &shape);
  std::vector<BatchLayout> lastRound(int64_t step, const StepShape &shape);
  std::vector<BatchLayout> roundInOrder(int64_t number, const StepShape &shape);

  /// Optimizer steps of an epoch with `perStep` = K N micro-batches a step.
  int64_t stepsPerEpoch(int64_t perStep) const;
  /// Epochs done after `steps` steps, as Hugging Face's Trainer counts them.
  double epochAfter(int64_t steps, int64_t perStep) const;

protected:
  /// at(), but in the smallest shape that holds the rows.
  virtual BatchLayout smallestAt(int64_t step, int64_t index,
                                 const StepShape &shape) = 0;
  virtual BatchLayout smallestInOrder(int64_t number) = 0;
  /// Whether epochs end with a partial step. If not, the file restarts inside a
  /// step.
  virtual bool endsEpochs() const { return true; }
};

/// Returns a permutation of [0, count) that depends on the arguments only.
std::vector<int64_t> shuffledOrder(int64_t count, uint64_t seed, int64_t epoch);

/// First-fit packing in order. Returns the bin of each row, such that the
/// lengths in a bin add up to at most `capacity`. Bins are numbered in order of
/// their first row. O(n log n).
std::vector<int64_t> packFirstFit(std::span<const int64_t> lengths,
                                  int64_t capacity);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_SCHEDULE_H
