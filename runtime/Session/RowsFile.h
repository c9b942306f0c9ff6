// SPDX-License-Identifier: MIT

// Rows of any length, shuffled, batched and padded (Dataset.h says the
// format).

#ifndef QLORA_RUNTIME_SESSION_ROWSFILE_H
#define QLORA_RUNTIME_SESSION_ROWSFILE_H

#include "runtime/Session/Dataset.h"

namespace qlora {

class RowsFile final : public Dataset {
public:
  static StatusOr<std::unique_ptr<Dataset>> open(SafetensorsFile file,
                                                 const DatasetShape &shape,
                                                 const DatasetOptions &options);

  int64_t count() const override;
  int64_t rows() const override {
    return static_cast<int64_t>(offsets.size()) - 1;
  }

protected:
  bool endsEpochs() const override { return true; }
  void fill(int64_t epoch, int64_t number, MicroBatch &out) override;
  int64_t shortestLength() const override { return shape.lengths.front(); }
  int64_t batchSize() const override { return shape.batch; }

private:
  RowsFile(DatasetShape shape, DatasetOptions options)
      : shape(std::move(shape)), options(options) {}
  Status load(const SafetensorsFile &file);
  Status loadOffsets(const SafetensorsFile &file);
  Status check(const std::string &path) const;
  void makeUnits();
  TokenRow row(int64_t number) const;
  int64_t unitLength(const std::vector<int64_t> &unit) const;

  const DatasetShape shape;
  const DatasetOptions options;
  std::vector<int32_t> ids, labels;
  std::vector<int64_t> offsets;
  /// The rows that share one row of a micro-batch: one, or several packed.
  std::vector<std::vector<int64_t>> units;
  int64_t orderedEpoch = -1; ///< the epoch that `order` is of
  std::vector<int64_t> order;
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_ROWSFILE_H
