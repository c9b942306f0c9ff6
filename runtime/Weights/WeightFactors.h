// SPDX-License-Identifier: MIT

// Adapters that start at factors of the weights beside them, which the
// compiler recorded (kAdapterFactorsAttr in dialects/Model/Model.h):
//
//   pissa, pissa_niter_N, olora   W = W' + scale * B A, and W', rounded to the
//                                 type of the file, is what becomes the base
//   loftq                         W - Q(W) is about B A
//
// Weights are decomposed one at a time, each by one rank, which tells the
// others, so that all have the same bits. Kept are A and B of all; beside
// them there is one weight in f32 at a time, and what LowRank.h takes.

#ifndef QLORA_RUNTIME_WEIGHTS_WEIGHTFACTORS_H
#define QLORA_RUNTIME_WEIGHTS_WEIGHTFACTORS_H

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/Base/Progress.h"
#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Weights/LowRank.h"
#include "runtime/Weights/ModelFiles.h"

namespace qlora {

/// What the options and train.so say of it.
struct FactorRequest {
  std::string init;       ///< init_lora_weights
  nlohmann::json factors; ///< the recorded "adapter_factors", or null
  uint64_t seed = 0;      ///< of the start of subspace iterations
  ProgressListener progress = {}; ///< weights
};

/// Of one weight.
struct WeightFactors {
  const qlora_parameter *weight, *a, *b;
  double scale;
  bool isTurned; ///< the file has [in, out]
  LowRank values = {};

  /// Elements of the file from `first` on, of its type, less scale * B A.
  void subtractFrom(int64_t first, qlora_dtype type,
                    std::span<uint8_t> elements) const;
};

class StartingFactors {
public:
  /// None where nothing is recorded. All ranks call it.
  static StatusOr<StartingFactors> compute(const LoadedModule &module,
                                           const FactorRequest &request,
                                           const ModelFiles &model,
                                           RankGroup &group);

  /// What is left of the weights is the base.
  bool isOfBase() const { return changesBase && !all.empty(); }
  /// Null for a weight that is what the file has.
  const WeightFactors *ofBase(const qlora_parameter &weight) const;
  /// The values of a parameter of QLORA_INIT_FACTOR, row-major; empty: none.
  std::span<const float> ofAdapter(const qlora_parameter &parameter) const;

  /// B becomes -B, as a plain LoRA has it that takes the start off again.
  void turnB();

private:
  Status find(const LoadedModule &module, const nlohmann::json &factors);

  std::vector<WeightFactors> all;
  std::map<std::string, size_t, std::less<>> byName; ///< W, A and B
  bool changesBase = false;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_WEIGHTFACTORS_H
