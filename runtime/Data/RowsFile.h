// SPDX-License-Identifier: MIT

// Rows of any length, shuffled, batched and padded (Dataset.h says the
// format).

#ifndef QLORA_RUNTIME_DATA_ROWSFILE_H
#define QLORA_RUNTIME_DATA_ROWSFILE_H

#include "runtime/Data/Dataset.h"
#include "runtime/Data/StepPacking.h"

namespace qlora {

class RowsFile final : public Dataset {
public:
  static StatusOr<std::unique_ptr<Dataset>> open(SafetensorsFile file,
                                                 const CompiledVariants &shape,
                                                 const DatasetOptions &options);

  int64_t count() const override;
  int64_t countInOrder() const override;
  int64_t rows() const override {
    return static_cast<int64_t>(offsets.size()) - 1;
  }
  int64_t microBatches(int64_t step, const StepShape &shape) override;
  void read(int64_t step, int64_t index, const StepShape &shape,
            MicroBatch &out) override;
  void readInOrder(int64_t number, MicroBatch &out) override;
  BatchShape shapeOf(int64_t step, int64_t index,
                     const StepShape &shape) override;
  BatchShape shapeInOrder(int64_t number) override;
  void identify(ContentHash &hash) const override;
  int64_t labelsOf(int64_t step, int64_t index,
                   const StepShape &shape) override;

protected:
  bool endsEpochs() const override { return true; }
  void fill(int64_t epoch, int64_t number, MicroBatch &out) override;
  BatchShape shapeAt(int64_t epoch, int64_t number) override;
  int64_t labelsAt(int64_t epoch, int64_t number) override;
  BatchShape smallestShape() const override {
    return {shape.batch, shape.lengths.front()};
  }

private:
  RowsFile(CompiledVariants shape, DatasetOptions options)
      : shape(std::move(shape)), options(options) {}
  Status load(const SafetensorsFile &file);
  Status loadOffsets(const SafetensorsFile &file);
  Status check(const std::string &path);
  void makeUnits();
  void packInOrder();
  bool isPaddingFree() const {
    return options.paddingFree.value_or(true) && !shape.buckets.empty();
  }
  TokenRow row(int64_t number) const;
  int64_t unitLength(const std::vector<int64_t> &unit) const;
  int64_t labelsOf(std::span<const int64_t> unitNumbers) const;
  /// Of a micro-batch of an epoch, -1: in file order.
  std::vector<int64_t> unitsOf(int64_t epoch, int64_t number);
  int64_t unitCount() const { return static_cast<int64_t>(units.size()); }
  void orderFor(int64_t epoch);
  const StepPlan &planOf(int64_t step, const StepShape &stepShape);
  /// The units of a line of a pass in file order; none past its end.
  std::span<const int64_t> lineInOrder(int64_t number) const;
  int64_t bucketOf(std::span<const int64_t> unitNumbers) const;
  void placeUnit(const std::vector<int64_t> &unit, int64_t b, int64_t offset,
                 int32_t segment, MicroBatch &out) const;
  void fillBucket(std::span<const int64_t> unitNumbers, MicroBatch &out) const;

  const CompiledVariants shape;
  const DatasetOptions options;
  std::vector<int32_t> ids, labels;
  std::vector<int64_t> offsets;
  /// The rows that share one row of a micro-batch: one, or several packed.
  std::vector<std::vector<int64_t>> units;
  std::vector<int64_t> labelCounts; ///< of each row
  int64_t orderedEpoch = -1; ///< the epoch that `order` is of
  std::vector<int64_t> order;
  /// Padding free: the units of each micro-batch of a step, and of a pass in
  /// file order.
  StepPlan plan, inOrder;
  int64_t plannedStep = -1; ///< the step that `plan` is of, of this shape
  StepShape plannedShape;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_ROWSFILE_H
