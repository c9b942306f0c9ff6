// SPDX-License-Identifier: MIT

// Initial LoRA factors A and B that are computed from a base weight W. The
// compiler records which adapters need them (kAdapterFactorsAttr in
// dialects/Model/Model.h). Q(W) is the quantized weight:
//
//   pissa, pissa_niter_N, olora   the base W is replaced by W' = W - scale * B
//                                 A, rounded to the type of the file
//   loftq                         B A approximates W - Q(W); the base stays W
//
// Each weight is decomposed by one rank, which sends the factors to the others,
// so that all ranks have the same bits. A rank stores A and B of all weights.
// For one weight at a time, it also stores the weight in f32 and the temporary
// matrices of its decomposition (LowRank.h).

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

/// Arguments of LoraInitFactors::compute(), from the options and train.so.
struct FactorRequest {
  std::string init;       ///< value of init_lora_weights
  nlohmann::json factors; ///< the recorded "adapter_factors", or null
  uint64_t seed = 0;      ///< seed of subspace iterations
  ProgressListener progress = {}; ///< receives the count of decomposed weights
};

/// The factors of `weight`, and the parameters `a` and `b` of its adapter.
struct WeightFactors {
  const qlora_parameter *weight, *a, *b;
  double scale;
  bool isTransposed; ///< whether the file has the weight as [in, out]
  LowRank values = {};

  /// Subtracts scale * B A from `elements`, which begin at index `first`.
  void subtractFrom(int64_t first, qlora_dtype type,
                    std::span<uint8_t> elements) const;
};

class LoraInitFactors {
public:
  /// Computes the recorded factors, if there are any. All ranks must call it.
  static StatusOr<LoraInitFactors> compute(const LoadedModule &module,
                                           const FactorRequest &request,
                                           const ModelFiles &model,
                                           RankGroup &group);

  /// Returns whether the base is W' instead of W.
  bool isOfBase() const { return changesBase && !all.empty(); }
  /// Returns null for a weight from which nothing is subtracted.
  const WeightFactors *ofBase(const qlora_parameter &weight) const;
  /// Returns the row-major values of a QLORA_INIT_FACTOR parameter, or nothing.
  std::span<const float> ofAdapter(const qlora_parameter &parameter) const;

  /// Negates B, for AdapterForm::kPlain (Checkpoint/Adapter.h).
  void turnB();

private:
  Status find(const LoadedModule &module, const nlohmann::json &factors);

  std::vector<WeightFactors> all;
  /// Index in `all` of a name of W, A or B.
  std::map<std::string, size_t, std::less<>> byName;
  bool changesBase = false;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_WEIGHTFACTORS_H
