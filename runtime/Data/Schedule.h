// SPDX-License-Identifier: MIT

// Which rows share a micro-batch, from their lengths alone: the same on every
// rank for the same file and seed, and known before any token is read.
//
// Micro-batch i of step s is number s K N + i of a pass, for K accumulated ones on
// each of N ranks, where ranks with the same rows are one. Which rank runs it,
// Deal.h says. Three orders:
//
//   whole         a token file's own; it starts over where it ends, also
//                 inside a step
//   padded        rows shuffled with the seed in each epoch, or packed first
//                 and then shuffled, each on a line of the shortest compiled
//                 length that fits
//   padding free  the rows of a padded step, dealt anew among its micro-batches,
//                 which are one line each (StepPacking.h)
//
// The last step of an epoch of rows has what is left; missing rows and
// micro-batches are padding without labels, so that they add nothing to the
// loss, which is a mean over labelled tokens.
//
// In lockstep, ranks run the same entries at the same time: the k-th
// micro-batches of all of them have the shape of the largest, as the numbers
// i N to i N + N - 1 of a pass in file order do.

#ifndef QLORA_RUNTIME_DATA_SCHEDULE_H
#define QLORA_RUNTIME_DATA_SCHEDULE_H

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Data/Deal.h"
#include "runtime/Device/MicroBatch.h"
#include "runtime/Module/CompiledVariants.h"

namespace qlora {

/// The micro-batches of a step: K of each of N ranks that have rows of their own.
struct StepShape {
  int64_t accumulation = 1;
  int64_t ranks = 1;
  bool inLockstep = false; ///< every entry has collectives of several ranks
  /// Rows share a micro-batch as on one rank that has all of them.
  bool dealsAsOne = false;
  /// Of each rank beside the others, above 0; none: all are equal, as they are
  /// in lockstep.
  std::vector<double> speeds = {};

  int64_t count() const { return accumulation * ranks; }
  bool operator==(const StepShape &) const = default;
};

/// The rows of a micro-batch: those of a line follow each other, and what no
/// row fills is padding.
struct BatchLayout {
  BatchShape shape;
  /// At most shape.batch; of rows that have several lines the first ones.
  std::vector<std::vector<int64_t>> lines;
};

struct ScheduleOptions {
  uint64_t seed = 0;
  bool packing = false; ///< rows files only
  /// Rows files only; needs buckets. Empty: where there are any.
  std::optional<bool> paddingFree = std::nullopt;
  /// Tokens of each row's answer, where a micro-batch has mismatched ones too
  /// (MismatchedAnswers.h) and a length for all.
  std::vector<int64_t> answers = {};
};

/// Used by one thread.
class Schedule {
public:
  virtual ~Schedule() = default;

  /// `lengths`: of the rows, each at most the longest that is compiled.
  /// `isWhole`: in the file's order. Padding free without token buckets is
  /// refused.
  static StatusOr<std::unique_ptr<Schedule>>
  make(std::vector<int64_t> lengths, const CompiledVariants &variants,
       bool isWhole, const ScheduleOptions &options);

  /// Micro-batches of one pass over the file, as padded ones; at least 1.
  virtual int64_t count() const = 0;
  /// Micro-batches of one pass in file order, which may need fewer.
  virtual int64_t countInOrder() const { return count(); }
  /// Micro-batches of `step` on all ranks: K N, or a smaller multiple of N.
  virtual int64_t microBatches(int64_t, const StepShape &shape) {
    return shape.count();
  }
  Deal deal(int64_t step, const StepShape &shape) {
    return {microBatches(step, shape), shape.ranks, shape.speeds};
  }
  /// Micro-batch `index` of `step`, below microBatches().
  BatchLayout at(int64_t step, int64_t index, const StepShape &shape);
  /// Micro-batch `number` in file order; padding past countInOrder().
  BatchLayout inOrder(int64_t number, const StepShape &shape);
  /// Micro-batches k N to k N + N - 1 of a step, which run together in lockstep;
  /// the last one of each rank; those that run together with `number` of a pass
  /// in file order.
  std::vector<BatchLayout> round(int64_t step, int64_t k,
                                 const StepShape &shape);
  std::vector<BatchLayout> lastRound(int64_t step, const StepShape &shape);
  std::vector<BatchLayout> roundInOrder(int64_t number, const StepShape &shape);

  /// Optimizer steps of an epoch with `perStep` = K N micro-batches a step.
  int64_t stepsPerEpoch(int64_t perStep) const;
  /// Epochs done after `steps` steps, as Hugging Face's Trainer counts.
  double epochAfter(int64_t steps, int64_t perStep) const;

protected:
  /// The same, in the smallest shape that holds it.
  virtual BatchLayout smallestAt(int64_t step, int64_t index,
                                 const StepShape &shape) = 0;
  virtual BatchLayout smallestInOrder(int64_t number) = 0;
  /// Epochs end with a partial step; otherwise the file starts over inside a
  /// step.
  virtual bool endsEpochs() const { return true; }
};

/// A permutation of [0, count) that depends on the arguments only.
std::vector<int64_t> shuffledOrder(int64_t count, uint64_t seed, int64_t epoch);

/// First-fit packing in order: bin of each row, such that the lengths in a
/// bin add up to at most `capacity`. Bins are numbered in order of their
/// first row. O(n log n).
std::vector<int64_t> packFirstFit(std::span<const int64_t> lengths,
                                  int64_t capacity);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_SCHEDULE_H
