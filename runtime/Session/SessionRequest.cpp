// SPDX-License-Identifier: MIT

// Resolves a request to a module, options and a device.

#include "runtime/Session/SessionRequest.h"

#include <cstdlib>
#include <utility>

#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/BestModel.h"
#include "runtime/Module/LaunchRequest.h"
#include "runtime/Session/RunHardware.h"
#include "runtime/Session/SharedGpus.h"

namespace qlora {

StatusOr<LoadedRequest> loadRequest(const SessionRequest &request) {
  QLORA_ASSIGN_OR_RETURN(LoadedModule module,
                         LoadedModule::open(request.modulePath));
  Options options;
  Status recorded = options.applyRecorded(module.table().config_json);
  if (!recorded.isOk())
    return recorded.withContext(fmt::format("'{}'", request.modulePath));
  if (!request.configFile.empty())
    QLORA_RETURN_IF_ERROR(options.applyYaml(request.configFile));
  QLORA_RETURN_IF_ERROR(options.applySettings(request.settings));
  QLORA_RETURN_IF_ERROR(options.validate());
  QLORA_RETURN_IF_ERROR(checkBestModelOptions(options));
  if (request.checkModel)
    QLORA_RETURN_IF_ERROR(request.checkModel(options, request.modulePath));
  return LoadedRequest{std::move(module), std::move(options)};
}

ThreadRequest threadsOf(const SessionRequest &request,
                        const RankEnvironment &env) {
  return {request.threads, std::getenv("OMP_NUM_THREADS"), usableCpus(),
          env.localWorldSize};
}

StatusOr<std::unique_ptr<Device>>
openDevice(const SessionRequest &request, const LoadedModule &module,
           const Options &runOptions, RankGroup &group,
           const RankEnvironment &env, KernelObserver &observer) {
  const char *target =
      module.table().target == QLORA_TARGET_CUDA ? "cuda" : "cpu";
  if (request.device != "auto" && request.device != target)
    return Status::invalid(
        "--device {}: '{}' was compiled for {}; compile it with --target {}",
        request.device, module.path(), target, request.device);
  DeviceOptions options;
  options.collectives = group.groups();
  options.observer = &observer;
  if (request.sweep) {
    options.turns = &request.sweep->turns;
    options.run = request.sweep->run;
  }
  options.threads = threadsPerRank(threadsOf(request, env));
  options.ordinal = gpuOf(env, request.ranksPerGpu);
  options.graphs = request.cudaGraphs;
  QLORA_RETURN_IF_ERROR(checkKernelNames(request.disabledKernels));
  QLORA_RETURN_IF_ERROR(checkReferenceNames(request.referenceKernels));
  options.disabledKernels = request.disabledKernels;
  options.referenceKernels = request.referenceKernels;
  options.gemmTable = request.gemmTable;
  if (const std::string cache = userCacheFolder(); !cache.empty())
    options.gemmCache = cache + "/gemm_table.json";
  QLORA_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                         createDevice(target, options));
  // Only rank 0 prints the remark; in a sweep, only rank 0 of the first run.
  if (group.rank() != 0 || (request.sweep && request.sweep->run != 0))
    return device;
  const std::string remark = idleGpusRemark(*device, module, runOptions);
  if (!remark.empty())
    device->addRemark(remark);
  return device;
}

} // namespace qlora
