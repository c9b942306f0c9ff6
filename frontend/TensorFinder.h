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

  /// The weight of a linear: dense, or as bitsandbytes stores NF4. It is the
  /// files that decide; a 4-bit weight that config.json knows nothing of and
  /// a dense one that it calls 4-bit are errors.
  StatusOr<Weight> linear(const std::string &module,
                          const std::vector<int64_t> &shape);

  /// Counts a tensor as taken.
  void skip(const std::string &name) { taken.insert(name); }
  bool isTaken(const std::string &name) const { return taken.contains(name); }

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
