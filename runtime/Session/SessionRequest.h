// SPDX-License-Identifier: MIT

// What a user asks of a run, and the module, options and device that it means.

#ifndef QLORA_RUNTIME_SESSION_SESSIONREQUEST_H
#define QLORA_RUNTIME_SESSION_SESSIONREQUEST_H

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/Base/CpuCount.h"
#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankEnvironment.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Watch/Profiler.h"
#include "runtime/Weights/LoadWeights.h"

namespace qlora {

/// What a run of a sweep has of the others (Sweep.h); all of it outlives it.
struct SweepPart {
  std::string name; ///< "learning_rate=1e-4,lora_r=8"
  SweepTurns &turns;
  size_t run;
  SharedBase &base;
};

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
  int ranksPerGpu = 1;  ///< SharedGpus.h
  /// Whether the model that the options name is the module's; or empty.
  std::function<Status(const Options &options, const std::string &modulePath)>
      checkModel = {};
  const SweepPart *sweep = nullptr; ///< or null: a run of its own
  /// Of which each rank takes one (ProgramChoice.h); empty: modulePath is it.
  std::vector<std::string> programs = {};
  bool isGemmTableGiven = false; ///< else a checkpoint's table may be used
};

/// A module and the options that hold for it.
struct LoadedRequest {
  LoadedModule module;
  Options options;
};

/// Loads the module and resolves defaults, recorded options, YAML and flags.
StatusOr<LoadedRequest> loadRequest(const SessionRequest &request);

/// The threads of a rank of this machine.
ThreadRequest threadsOf(const SessionRequest &request,
                        const RankEnvironment &env);

/// The device that the module is for, before anything that takes long: a
/// machine without it says so now, and a remark of the device says which GPUs
/// are left idle. `group` and `observer` outlive it.
StatusOr<std::unique_ptr<Device>>
openDevice(const SessionRequest &request, const LoadedModule &module,
           const Options &runOptions, RankGroup &group, const RankEnvironment &env,
           KernelObserver &observer);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_SESSIONREQUEST_H
