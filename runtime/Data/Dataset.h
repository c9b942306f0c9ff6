// SPDX-License-Identifier: MIT

// Micro-batches of training and evaluation data.
//
// Two kinds of file. A *token file* holds whole micro-batches and is read in
// order, from the start again when it is shorter than the run:
//
//   input_ids, labels [, position_ids, segment_ids]   i32 [count, B, T]
//
// A *rows file*, which qlora-data makes from JSONL, holds rows of any length;
// they are shuffled with the seed in each epoch, or packed first and then
// shuffled, and padded to the shortest compiled length that fits, or, padding
// free, dealt anew among the micro-batches of their step (StepPacking.h):
//
//   input_ids, labels   i32 [tokens]     row_offsets   i64 [rows + 1]
//
// The micro-batch of step s, accumulation k of K, rank r of N is number
// (s K + k) N + r. In a rows file the last step of an epoch has what is left;
// missing rows and micro-batches are padding without labels, so that they add
// nothing to the loss, which is a mean over labelled tokens.
//
// Labels in files are those of their own token; what a micro-batch holds are
// targets, the label of the *next* token of the same segment. A token file
// without segment_ids has one segment per row.

#ifndef QLORA_RUNTIME_DATA_DATASET_H
#define QLORA_RUNTIME_DATA_DATASET_H

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/MicroBatch.h"
#include "runtime/Module/CompiledVariants.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// The micro-batches of a step: K of each of N ranks.
struct StepShape {
  int64_t accumulation = 1;
  int64_t ranks = 1;

  int64_t count() const { return accumulation * ranks; }
  bool operator==(const StepShape &) const = default;
};

/// Used by one thread. The same on every rank for the same file and seed.
class Dataset {
public:
  virtual ~Dataset() = default;

  /// Micro-batches of one pass over the file, as padded ones; at least 1.
  virtual int64_t count() const = 0;
  /// Micro-batches of one pass in file order, which may need fewer.
  virtual int64_t countInOrder() const { return count(); }
  /// Rows of text of one pass, for messages.
  virtual int64_t rows() const = 0;

  /// Optimizer steps of an epoch with `perStep` = K N micro-batches a step.
  int64_t stepsPerEpoch(int64_t perStep) const;
  /// Epochs done after `steps` steps, as Hugging Face's Trainer counts.
  double epochAfter(int64_t steps, int64_t perStep) const;

  /// How many micro-batches each rank runs in `step`: K, or fewer.
  virtual int64_t microBatches(int64_t, const StepShape &shape) {
    return shape.accumulation;
  }
  /// Micro-batch `index` = k N + r of `step`, k below microBatches().
  virtual void read(int64_t step, int64_t index, const StepShape &shape,
                    MicroBatch &out);
  /// Micro-batch `number` in file order; padding past countInOrder().
  virtual void readInOrder(int64_t number, MicroBatch &out);

  /// The shapes of what these two give, from lengths alone.
  virtual BatchShape shapeOf(int64_t step, int64_t index,
                             const StepShape &shape);
  virtual BatchShape shapeInOrder(int64_t number);

  /// Adds the length and labels of all that it gives.
  virtual void identify(ContentHash &hash) const = 0;
  /// How many labels read() gives, from counts that were made once.
  virtual int64_t labelsOf(int64_t step, int64_t index, const StepShape &shape);
  /// The labels of whichever rank has most in micro-batch k of `step`; nothing
  /// where ranks have other shapes than each other there. What all ranks know
  /// alike, without a message.
  std::optional<int64_t> mostLabels(int64_t step, int64_t k,
                                    const StepShape &shape);

protected:
  /// Epochs end with a partial step; otherwise the file starts over inside a
  /// step.
  virtual bool endsEpochs() const = 0;
  /// `number` is below count(). epoch -1: file order.
  virtual void fill(int64_t epoch, int64_t number, MicroBatch &out) = 0;
  virtual BatchShape shapeAt(int64_t epoch, int64_t number) = 0;
  virtual int64_t labelsAt(int64_t epoch, int64_t number) = 0;
  /// Of padding alone.
  virtual BatchShape smallestShape() const = 0;

private:
  /// Which of an epoch's micro-batches a step reads.
  struct Place {
    int64_t epoch, number;
  };
  Place placeOf(int64_t step, int64_t index, const StepShape &shape) const;
};

struct DatasetOptions {
  uint64_t seed = 0;
  bool packing = false; ///< rows files only
  /// Rows files only; needs buckets. Empty: where there are any.
  std::optional<bool> paddingFree = std::nullopt;
};

/// Opens either kind, told apart by the tensors in it, and checks every token
/// id, label and offset. Errors name the file, row and position.
StatusOr<std::unique_ptr<Dataset>> openDataset(const std::string &path,
                                               const CompiledVariants &shape,
                                               const DatasetOptions &options);

/// One row of input: ids and labels of its own tokens.
struct TokenRow {
  std::span<const int32_t> ids;
  std::span<const int32_t> labels;
};

/// Appends `row` at `offset` of row `b` of the micro-batch as segment
/// `segment`; the caller knows that it fits.
void placeRow(const TokenRow &row, int64_t b, int64_t offset, int32_t segment,
              MicroBatch &out);

/// A permutation of [0, count) that depends on the arguments only.
std::vector<int64_t> shuffledOrder(int64_t count, uint64_t seed, int64_t epoch);

/// First-fit packing in order: bin of each row, such that the lengths in a
/// bin add up to at most `capacity`. Bins are numbered in order of their
/// first row. O(n log n).
std::vector<int64_t> packFirstFit(std::span<const int64_t> lengths,
                                  int64_t capacity);

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
