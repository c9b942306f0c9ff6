// SPDX-License-Identifier: MIT

// Fills a device's arenas from a model's files and, if given, an adapter's.

#ifndef QLORA_RUNTIME_WEIGHTS_LOADWEIGHTS_H
#define QLORA_RUNTIME_WEIGHTS_LOADWEIGHTS_H

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/Base/Progress.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Weights/Parameters.h"
#include "runtime/Weights/QuantizedBase.h"
#include "runtime/Weights/WeightFactors.h"

namespace qlora {

/// The base that all runs of a sweep share; the first run creates it.
struct SharedBase {
  std::string key; ///< hash from baseKey()
  std::shared_ptr<QuantizedBase> base;
};

/// Arguments of loadWeights(). The references must outlive the weights.
struct WeightRequest {
  const LoadedModule &module;
  RankGroup &group;
  const QuantizedBaseCacheRequest &cache;
  std::string modelFolder;
  std::string adapterFolder; ///< folder of the adapter to start from, or empty
  uint64_t seed = 0;         ///< seed of parameters that no file has
  ProgressListener progress = {}; ///< receives bytes of the base
  SharedBase *shared = nullptr; ///< null: this run has its own base
  FactorRequest factors = {};
  std::vector<int64_t> tokens = {}; ///< see ParameterSources
  Collectives *shards = nullptr;    ///< see ParameterSources
  Collectives *slices = nullptr;    ///< see ParameterSources
  uint32_t piece = 0;               ///< see ParameterSources

  /// Returns what `options` say about the weights, for a rank that shares
  /// nothing. `adapter`: as adapterFolder.
  static WeightRequest of(const LoadedModule &module, const Options &options,
                          RankGroup &group,
                          const QuantizedBaseCacheRequest &cache,
                          const std::string &adapter);
};

struct LoadedWeights {
  std::shared_ptr<QuantizedBase> base; ///< null if arenas are not host memory
  /// Resident bytes of the process, without arenas; 0 if a GPU has the arenas.
  uint64_t processBytes = 0;
  /// Initial factors for AdapterForm::kPlain (Checkpoint/Adapter.h), or empty.
  LoraInitFactors factors = {};
  /// The first renamed tensor of the starting adapter (Parameters.h), if any.
  std::optional<RenamedTensor> renamed = {};
};

/// Loads the module into `device`, which allocates every arena, and fills them.
/// All ranks must call it. Installs the stop signal handlers (StopSignal.h).
StatusOr<LoadedWeights> loadWeights(const WeightRequest &request,
                                    Device &device);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_LOADWEIGHTS_H
