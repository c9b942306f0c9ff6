// SPDX-License-Identifier: MIT

// Takes tensors from the files by name, checks them, and remembers which were
// taken.

#ifndef QLORA_FRONTEND_TENSORFINDER_H
#define QLORA_FRONTEND_TENSORFINDER_H

#include <set>
#include <string>
#include <vector>

#include "frontend/DecoderWeights.h"

namespace qlora {

/// The config and the files outlive it.
class TensorFinder {
public:
  TensorFinder(const ModelConfig &config, const ModelFiles &files)
      : config(config), files(files) {}

  /// A tensor of bf16, f16 or f32 with this shape.
  StatusOr<Weight> dense(const std::string &name,
                         const std::vector<int64_t> &shape);

  /// A linear without its bias: dense in the family's layout, or as
  /// bitsandbytes stores NF4. It is the files that decide; a 4-bit weight that
  /// config.json knows nothing of and a dense one that it calls 4-bit are
  /// errors.
  StatusOr<LinearWeight> linear(const std::string &module, int64_t out,
                                int64_t in);

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
  StatusOr<Weight> quantized(const std::string &name,
                             const std::vector<int64_t> &shape);
  Status takePart(const std::string &name, SafetensorsDtype dtype,
                  int64_t count);
  bool isStoredQuantized(const std::string &name) const;
  bool isLeftUnquantized(const std::string &module) const;

  const ModelConfig &config;
  const ModelFiles &files;
  std::set<std::string> taken;
  int64_t quantizedCount = 0;
};

} // namespace qlora

#endif // QLORA_FRONTEND_TENSORFINDER_H
