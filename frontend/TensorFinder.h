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

/// The config and the files outlive it.
class TensorFinder {
public:
  TensorFinder(const ModelConfig &config, const ModelFiles &files)
      : config(config), files(files) {}

  /// A tensor of bf16, f16 or f32 with this shape.
  StatusOr<Weight> dense(const std::string &name,
                         const std::vector<int64_t> &shape);

  /// A linear without its bias: dense in the family's layout, or in a stored
  /// format. It is the files that decide; a quantised weight that config.json
  /// knows nothing of and a dense one that it calls quantised are errors.
  StatusOr<LinearWeight> linear(const std::string &module, int64_t out,
                                int64_t in);

  /// A weight in the stored format that config.json names, whose numbers have
  /// this shape. One of three dimensions is a matrix for each expert; it becomes
  /// one, the experts' one above the other.
  StatusOr<Weight> stored(const std::string &name,
                          const std::vector<int64_t> &shape);

  bool isStored(const std::string &name) const {
    return isStoredWeight(files, name);
  }

  /// Counts a tensor that is there as taken.
  void skip(const std::string &name) {
    taken.insert(files.find(name).tensor->name);
  }
  /// `stored` is the name that a file has for it.
  bool isTaken(const std::string &stored) const {
    return taken.contains(stored);
  }

  /// Once all linears are taken: a quantised model has one that is quantised.
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
