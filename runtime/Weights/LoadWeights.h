// SPDX-License-Identifier: MIT

// From the files of a model, and of an adapter to start from, to the filled
// arenas of a device.

#ifndef QLORA_RUNTIME_WEIGHTS_LOADWEIGHTS_H
#define QLORA_RUNTIME_WEIGHTS_LOADWEIGHTS_H

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/Base/Progress.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Weights/FrozenBase.h"
#include "runtime/Weights/Parameters.h"
#include "runtime/Weights/WeightFactors.h"

namespace qlora {

/// The base of the runs of a sweep, which the first one that needs it makes.
struct SharedBase {
  std::string key; ///< baseKey()
  std::shared_ptr<FrozenBase> base;
};

/// The references outlive the weights.
struct WeightRequest {
  const LoadedModule &module;
  RankGroup &group;
  const BaseCacheRequest &cache;
  std::string modelFolder;
  std::string adapterFolder; ///< or empty
  uint64_t seed = 0;         ///< of what no file has
  ProgressListener progress; ///< bytes of the base
  SharedBase *shared = nullptr; ///< or null: this run has its own base
  FactorRequest factors = {};
  std::vector<int64_t> tokens = {}; ///< as in ParameterSources
  Collectives *shards = nullptr;    ///< as in ParameterSources
  Collectives *slices = nullptr;    ///< as there
  uint32_t piece = 0;               ///< as there
};

struct LoadedWeights {
  std::shared_ptr<FrozenBase> base; ///< where arenas are host memory
  /// Of this process beside its arenas, where it has them; else 0.
  uint64_t processBytes = 0;
  /// Of adapters that are written as a plain LoRA of the model; else none.
  StartingFactors factors = {};
  /// A tensor of the adapter to start from that has another name than ours.
  std::optional<RenamedTensor> renamed = {};
};

/// Loads the module into `device`, which allocates every arena, and fills
/// them. All ranks call it. Takes the stop signals over (StopSignal.h).
StatusOr<LoadedWeights> loadWeights(const WeightRequest &request,
                                    Device &device);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_LOADWEIGHTS_H
