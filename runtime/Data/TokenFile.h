// SPDX-License-Identifier: MIT

// Whole micro-batches in file order (Dataset.h says the format).

#ifndef QLORA_RUNTIME_DATA_TOKENFILE_H
#define QLORA_RUNTIME_DATA_TOKENFILE_H

#include "runtime/Data/Dataset.h"

namespace qlora {

class TokenFile final : public Dataset {
public:
  static StatusOr<std::unique_ptr<Dataset>> open(SafetensorsFile file,
                                                 const CompiledVariants &shape);

  int64_t count() const override { return microBatches; }
  int64_t rows() const override { return microBatches * batch; }
  void identify(ContentHash &hash) const override { hash.add(labelCounts); }

protected:
  bool endsEpochs() const override { return false; }
  void fill(int64_t epoch, int64_t number, MicroBatch &out) override;
  BatchShape shapeAt(int64_t, int64_t) override { return {batch, length}; }
  int64_t labelsAt(int64_t, int64_t number) override {
    return labelCounts[static_cast<size_t>(number)];
  }
  BatchShape smallestShape() const override { return {batch, length}; }

private:
  TokenFile() = default;
  Status load(const SafetensorsFile &file, const CompiledVariants &shape);
  Status check(const std::string &path, int64_t vocabSize);

  int64_t microBatches = 0, batch = 0, length = 0;
  std::vector<int32_t> ids, labels;
  std::vector<int32_t> positions; ///< empty: from the segments
  std::vector<int32_t> segments;  ///< empty: one segment per row
  std::vector<int64_t> labelCounts; ///< of each micro-batch
};

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_TOKENFILE_H
