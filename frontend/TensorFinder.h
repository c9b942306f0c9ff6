// SPDX-License-Identifier: MIT

// Takes tensors from the files by name, checks them, and remembers which were
// taken.

#ifndef QLORA_FRONTEND_TENSORFINDER_H
#define QLORA_FRONTEND_TENSORFINDER_H

#include <set>
#include <string>
#include <vector>

#include "frontend/DecoderWeights.h"
#include "runtime/Weights/StoredTensors.h"

namespace qlora {

/// `config` and `files` must outlive it.
class TensorFinder {
public:
  TensorFinder(const ModelConfig &config, const ModelFiles &files)
      : config(config), files(files) {}

  /// Takes a tensor of bf16, f16 or f32 with this shape.
  StatusOr<Weight> dense(const std::string &name,
                         const std::vector<int64_t> &shape);

  /// Takes a linear without its bias: dense in the family's layout, or in a
  /// stored format, as the files have it. A quantised weight that config.json
  /// does not declare, or a dense one that it declares quantised, is an error.
  StatusOr<LinearWeight> linear(const std::string &module, int64_t out,
                                int64_t in);

  /// Takes a weight in the stored format that config.json names; `shape` is the
  /// decoded shape. Three dimensions are a matrix for each expert; the result
  /// is one matrix, with the experts stacked.
  StatusOr<Weight> stored(const std::string &name,
                          const std::vector<int64_t> &shape);

  bool isStored(const std::string &name) const {
    return isStoredWeight(files, name);
  }

  /// Marks a tensor, which must exist, as taken.
  void skip(const std::string &name) {
    taken.insert(files.find(name).tensor->name);
  }
  /// `stored` is a name in the files.
  bool isTaken(const std::string &stored) const {
    return taken.contains(stored);
  }

  /// After all linears: a quantised model must have a quantised one.
  Status checkQuantization() const;

private:
  StatusOr<Weight> take(const std::string &name);
  bool isLeftUnquantized(const std::string &module) const;

  const ModelConfig &config;
  const ModelFiles &files;
  std::set<std::string> taken;
  int64_t quantizedCount = 0;
};

} // namespace qlora

#endif // QLORA_FRONTEND_TENSORFINDER_H
