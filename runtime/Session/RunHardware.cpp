// SPDX-License-Identifier: MIT

// Collects hardware names from the ranks and from NVIDIA's driver.

#include "runtime/Session/RunHardware.h"

#include "runtime/Base/Amounts.h"
#include "runtime/Base/HubReference.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"

namespace qlora {

static bool isGpu(const Device &device) { return !device.traits.hasHostArenas; }

StatusOr<std::string> hardwareText(const Device &device, RankGroup &group,
                                   const SessionRequest &request,
                                   const RankEnvironment &env) {
  const std::string each =
      formatCounted(threadsPerRank(threadsOf(request, env)), "thread");
  if (!isGpu(device))
    return group.size() == 1
               ? "CPU, " + each
               : fmt::format("CPU, {} ranks x {}", group.size(), each);
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         group.collectives().allGather(device.traits.hardware));
  std::vector<std::string> gpus; // one name for each GPU
  for (size_t rank = 0; rank < names.size();
       rank += static_cast<size_t>(request.ranksPerGpu))
    gpus.push_back(names[rank]);
  return countedNames(gpus);
}

/// Returns `qlora train MODEL DATA --target cuda` with this run's values.
static std::string compileCommand(const Options &options) {
  std::string command = "qlora train";
  if (const std::string model = options.text("model_name_or_path");
      !model.empty())
    command += " " + shownPath(model);
  for (const auto &[path, weight] : options.paths("train_file"))
    command += isHubReference(path) ? " '" + path + "'" : " " + shownPath(path);
  return command + " --target cuda";
}

std::string idleGpusRemark(const Device &device, const LoadedModule &module,
                           const Options &options) {
  if (isGpu(device))
    return "";
  auto gpus = visibleGpus();
  if (gpus.isOk())
    return fmt::format("idle GPU: {}: '{}' was compiled for the CPU. Fix: {}",
                       gpuText(*gpus), shownPath(module.path()),
                       compileCommand(options));
  if (gpus.status().code() == StatusCode::kNotFound)
    return "";
  return fmt::format("idle GPU: {}", gpus.status().message());
}

} // namespace qlora
