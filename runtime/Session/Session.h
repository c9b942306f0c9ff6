// SPDX-License-Identifier: MIT

// One rank of a training run, from a train.so and the user's words to an
// adapter. In this order:
//
//   load and check the module, resolve the options (Options.h)
//   meet the other ranks (RankGroup.h)
//   claim the output folder (OutputFolder.h)
//   open the device that the module is for
//   read the data; JSONL is tokenised once a machine (TokenCache.h)
//   refuse ranks that were started otherwise than rank 0 (SameOnRanks.h)
//   bind the weights, allocate every arena
//   print the plan; dump; evaluate; train; evaluate; write the adapter
//
// Rank 0 alone writes files and standard output.

#ifndef QLORA_RUNTIME_SESSION_SESSION_H
#define QLORA_RUNTIME_SESSION_SESSION_H

#include <functional>
#include <string>
#include <vector>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankEnvironment.h"
#include "runtime/Watch/Profiler.h"
#include "runtime/Weights/FrozenBase.h"

namespace qlora {

/// What the command line said.
struct SessionRequest {
  std::string modulePath;
  std::string configFile;              ///< YAML, or empty
  std::vector<OptionSetting> settings; ///< flags
  std::string dumpFile;                ///< or empty
  std::string device = "auto"; ///< or "cpu", "cuda": must be the module's
  bool cudaGraphs = true;
  std::vector<std::string> disabledKernels; ///< rows of Kernels.def
  std::vector<std::string> referenceKernels; ///< ops to do by their oracles
  std::string gemmTable = DeviceOptions::kMeasureGemms; ///< as there
  BaseCacheRequest baseCache;
  ProfileRequest profile;
  bool verbose = false; ///< the long tables of memory too
  int threads = 0;      ///< of each rank; 0: not given (Base/CpuCount.h)
  /// Whether the model that the options name is the module's; or empty.
  std::function<Status(const Options &options, const std::string &modulePath)>
      checkModel = {};
};

/// A module and the options that hold for it.
struct LoadedRequest {
  LoadedModule module;
  Options options;
};

/// Loads the module and resolves defaults, recorded options, YAML and flags.
StatusOr<LoadedRequest> loadRequest(const SessionRequest &request);

/// Runs this rank to its end. The exit code: 0, or 128 + the signal that
/// stopped the run after a step. `listening`: RankChannel's, or closed.
StatusOr<int> runSession(const SessionRequest &request,
                         const RankEnvironment &env, FileDescriptor listening);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_SESSION_H
