// SPDX-License-Identifier: MIT

// A user's request for a run, and its module, options and device.

#ifndef QLORA_RUNTIME_SESSION_SESSIONREQUEST_H
#define QLORA_RUNTIME_SESSION_SESSIONREQUEST_H

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/Base/CpuCount.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"
#include "runtime/Ranks/RankEnvironment.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Session/RunExtra.h"
#include "runtime/Watch/Profiler.h"
#include "runtime/Weights/LoadWeights.h"

namespace qlora {

/// One run of a sweep, and the state that all its runs share (Sweep.h).
struct SweepPart {
  std::string name; ///< the run's name: "learning_rate=1e-4,lora_r=8"
  SweepTurns &turns;
  size_t run;
  SharedBase &base;
};

/// A user's command line.
struct SessionRequest {
  std::string modulePath;
  std::string configFile;              ///< path of a YAML file, or empty
  std::vector<OptionSetting> settings; ///< flags of the command line
  std::string dumpFile;                ///< file of --dump, or empty
  std::string evaluationRows; ///< file of --evaluation-rows, or empty
  std::string device = "auto"; ///< auto, cpu or cuda; must be the module's
  bool cudaGraphs = true;
  std::vector<std::string> disabledKernels; ///< names of rows in Kernels.def
  std::vector<std::string> referenceKernels; ///< ops that use reference kernels
  std::string gemmTable = DeviceOptions::kMeasureGemms; ///< see DeviceOptions
  QuantizedBaseCacheRequest baseCache;
  ProfileRequest profile;
  bool verbose = false; ///< print the long memory tables too
  int threads = 0; ///< threads of each rank; 0: not given (Base/CpuCount.h)
  /// Adapters of a generation, NAME=DIR or DIR (AdapterChoice.h).
  std::vector<std::string> adapters = {};
  int ranksPerGpu = 1;  ///< ranks that share a GPU (SharedGpus.h)
  /// Checks that the options name the model of the module. May be empty.
  std::function<Status(const Options &options, const std::string &modulePath)>
      checkModel = {};
  const SweepPart *sweep = nullptr; ///< null: not part of a sweep
  /// Programs for the ranks to choose from (ProgramChoice.h), or empty.
  std::vector<std::string> programs = {};
  /// Makes what the run does besides training (Extras/RunExtras.h). May be
  /// empty: nothing.
  std::function<RunExtras(const SessionRequest &)> extras = {};
  bool isGemmTableGiven = false; ///< if not, a checkpoint's table may be used
};

struct LoadedRequest {
  LoadedModule module;
  Options options;
};

/// Loads the module and resolves defaults, recorded options, YAML and flags.
StatusOr<LoadedRequest> loadRequest(const SessionRequest &request);

/// Returns the threads of a rank on this machine.
ThreadRequest threadsOf(const SessionRequest &request,
                        const RankEnvironment &env);

/// Opens the device that the module is for. Called before anything slow, so
/// that a missing device is reported at once. A remark names the GPUs that are
/// left idle. `group` and `observer` must outlive the device.
StatusOr<std::unique_ptr<Device>>
openDevice(const SessionRequest &request, const LoadedModule &module,
           const Options &runOptions, RankGroup &group,
           const RankEnvironment &env, KernelObserver &observer);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_SESSIONREQUEST_H
