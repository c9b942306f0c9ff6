// SPDX-License-Identifier: MIT

// Finds tensors in the model files by name and checks them. Records which ones
// were found ("taken"), so that unused tensors can be reported.

#ifndef QLORA_FRONTEND_TENSORFINDER_H
#define QLORA_FRONTEND_TENSORFINDER_H

#include <set>
#include <string>
#include <vector>

#include "frontend/DecoderWeights.h"
#include "runtime/Weights/StoredTensors.h"

namespace qlora {

/// `config` and `files` must outlive the finder.
class TensorFinder {
public:
  TensorFinder(const ModelConfig &config, const ModelFiles &files)
      : config(config), files(files) {}

  /// Takes a tensor, which must be bf16, f16 or f32 and have this shape.
  StatusOr<Weight> dense(const std::string &name,
                         const std::vector<int64_t> &shape);

  /// Takes the weight of a linear, but not its bias. The weight is dense, in
  /// the family's layout, or quantized. It is an error if config.json
  /// contradicts the files about which of the two it is.
  StatusOr<LinearWeight> linear(const std::string &module, int64_t out,
                                int64_t in);

  /// Takes a weight in the quantized format that config.json names. `shape` is
  /// the decoded shape. A shape of three dimensions, experts first, becomes two
  /// in the result, because the experts' matrices are stacked.
  StatusOr<Weight> stored(const std::string &name,
                          const std::vector<int64_t> &shape);

  bool isStored(const std::string &name) const {
    return isStoredWeight(files, name);
  }

  /// Marks a tensor, which must exist, as taken.
  void skip(const std::string &name) {
    taken.insert(files.find(name).tensor->name);
  }
  /// True if the tensor with the name `stored` in the files was taken.
  bool isTaken(const std::string &stored) const {
    return taken.contains(stored);
  }

  /// Fails if config.json declares a quantized model, but no weight taken so
  /// far is quantized. Must be called after all linears were taken.
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
