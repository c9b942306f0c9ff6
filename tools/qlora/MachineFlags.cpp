// SPDX-License-Identifier: MIT

// Chooses target and layout for the machine, and passes --gpus-per-node,
// --network and --ranks to the tools that need them.

#include "tools/qlora/MachineFlags.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/Kernels/Cuda/TargetChoice.h"
#include "runtime/Options/DeviceMap.h"
#include "runtime/Options/ObjectiveOptions.h"
#include "runtime/Options/ParallelMesh.h"
#include "runtime/Options/StepRows.h"
#include "runtime/Ranks/RankEnvironment.h"
#include "tools/qlora/OptionSettings.h"
#include "tools/qlora/Tools.h"

namespace qlora {

StatusOr<Machines> Machines::of(const CommandLine &line) {
  Machines machines;
  QLORA_RETURN_IF_ERROR(machines.runner.applySettings(line.settings));
  QLORA_RETURN_IF_ERROR(machines.compiler.applySettings(line.settings));
  machines.isRanksSaid = machines.compiler.isGiven("ranks");
  machines.ranks = machines.runner.integer("gpus");
  if (machines.isRanksSaid)
    machines.ranks = machines.compiler.integer("ranks");
  const int64_t perNode = machines.compiler.integer("gpus_per_node");
  machines.localRanks =
      perNode > 0 ? std::min(perNode, machines.ranks) : machines.ranks;
  if (machines.isRanksSaid)
    return machines;
  QLORA_ASSIGN_OR_RETURN(const RankEnvironment env,
                         readRankEnvironment(std::getenv));
  if (env.worldSize > 1) {
    machines.ranks = env.worldSize;
    machines.localRanks = env.localWorldSize;
  }
  return machines;
}

/// Returns whether the compiler chooses the parallel layout.
static bool choosesLayout(const Configuration &result) {
  return result.program.empty() &&
         result.options.text("parallel") == kAutoParallel;
}

/// Returns the GPU named by `--simulate GPU`, or an empty text.
static std::string predictedGpu(const Machines &machines) {
  constexpr std::string_view kNull = "null:";
  const std::string device = machines.runner.text("device");
  return device.starts_with(kNull) ? device.substr(kNull.size()) : "";
}

/// Chooses the target and adds it to the compiler flags, part of the cache key.
static Status addTarget(const Machines &machines, ProgramUse use,
                        Configuration &result) {
  if (!result.program.empty())
    return Status::ok();
  const Options &compiler = machines.compiler;
  TargetRequest request{compiler.text("target"), compiler.names("cuda_arch"),
                        compiler.text("cuda_compiler"), result.deviceProfile};
  if (request.profile.empty())
    request.profile = predictedGpu(machines);
  const std::string device = machines.runner.text("device");
  const bool isSweep = !machines.runner.names("sweep").empty();
  // Sweeps run only on CPUs.
  if (request.target == "auto" &&
      (isSweep || device == "cpu" || device == "cuda"))
    request.target = isSweep ? "cpu" : device;
  request.hasKernels = use == ProgramUse::kTrain && !device.starts_with("null");
  request.hasCompiler = findTool("qloracc").isOk();
  QLORA_ASSIGN_OR_RETURN(const TargetChoice choice, chooseTarget(request));
  result.target = choice.target;
  if (!choice.warning.empty())
    result.notes.push_back("warning: " + choice.warning);
  result.compilerFlags.push_back("--target=" + choice.target);
  if (choice.target == "cuda")
    result.compilerFlags.push_back(fmt::format(
        "--cuda-arch={}", choice.archs.empty()
                              ? kNoArchs
                              : fmt::to_string(fmt::join(choice.archs, ","))));
  return Status::ok();
}

/// Passes --gpus-per-node and --network to the compiler if it chooses the
/// layout. Passes them to the runner for --simulate or a given layout. With
/// --simulate GPU, the compiler uses that GPU's profile by default.
static void addNetworkFlags(const Machines &machines, Configuration &result) {
  const Options &compiler = machines.compiler;
  const std::string gpu = predictedGpu(machines);
  const bool chooses = choosesLayout(result), predicts = !gpu.empty();
  for (const char *name : {"gpus_per_node", "network"}) {
    if (!compiler.isGiven(name))
      continue;
    const std::string flag =
        flagOf(*findOption(compilerRows(), name), compiler.value(name));
    if (chooses)
      result.compilerFlags.push_back(flag);
    if (predicts || !chooses)
      result.runnerFlags.push_back(flag);
  }
  if (!chooses)
    return;
  if (predicts && result.deviceProfile.empty()) {
    result.deviceProfile = gpu;
    result.compilerFlags.push_back("--device-profile=" + result.deviceProfile);
  }
  // Without a named GPU, the layout must fit the memory of this machine's GPU.
  result.alwaysCompiles |= result.target == "cuda" && machines.ranks > 1 &&
                           result.deviceProfile.empty() &&
                           !result.options.isGiven("memory_limit");
}

/// Refuses --memory-limit auto, which means a whole GPU, if ranks share a GPU.
static Status checkSharedLimit(const Machines &machines,
                               const Configuration &result) {
  const int64_t ranksPerGpu = machines.runner.integer("ranks_per_gpu");
  const Options &options = result.options;
  const bool fillsMachine =
      options.isGiven("memory_limit")
          ? options.value("memory_limit") == kAutoSize
          : options.boolean("auto_find_batch_size") || choosesLayout(result);
  if (ranksPerGpu == 1 || !fillsMachine)
    return Status::ok();
  return Status::invalid(
      "--ranks-per-gpu {}: --memory-limit auto is the memory of a whole GPU. "
      "Fix: set --memory-limit to the bytes of one rank, such as 20GiB",
      ranksPerGpu);
}

/// Checks the rows per step before compiling, and adds --ranks if the number of
/// ranks affects the program. Does nothing if the user gave a program, because
/// the program contains these values.
static Status addStepRows(const Machines &machines, Configuration &result) {
  if (!result.program.empty())
    return Status::ok();
  const bool findsBatch = result.options.boolean("auto_find_batch_size");
  const bool chooses = choosesLayout(result);
  const std::string hook = result.options.text("ddp_comm_hook");
  const bool isOfRanks = hook == "int8" || hook == "power_sgd";
  const std::string map = machines.compiler.text("device_map");
  const bool asks = findsBatch || chooses || isOfRanks;
  if (!machines.isRanksSaid && ((asks && machines.ranks > 1) || !map.empty()))
    result.compilerFlags.push_back(fmt::format("--ranks={}", machines.ranks));
  int64_t withRows = machines.ranks;
  if (!chooses) {
    QLORA_ASSIGN_OR_RETURN(const MappedMesh mapped,
                           mappedMesh(result.options, map, machines.ranks));
    QLORA_RETURN_IF_ERROR(mapped.mesh.checkRanks(
        "--parallel " + mapped.mesh.text(), machines.ranks));
    QLORA_RETURN_IF_ERROR(
        checkRanksOf(result.options, machines.ranks, mapped.mesh.rowRanks()));
    withRows = std::max<int64_t>(1, withRows / mapped.mesh.rowRanks());
  }
  if (findsBatch)
    return batchCandidates(result.options, withRows).status();
  QLORA_ASSIGN_OR_RETURN(const int64_t steps,
                         accumulationSteps(result.options, withRows));
  if (chooses && steps > 1)
    result.compilerFlags.push_back(
        fmt::format("--gradient-accumulation-steps={}", steps));
  return Status::ok();
}

Status addMachineFlags(const Machines &machines, ProgramUse use,
                       Configuration &result) {
  QLORA_RETURN_IF_ERROR(addTarget(machines, use, result));
  addNetworkFlags(machines, result);
  QLORA_RETURN_IF_ERROR(checkSharedLimit(machines, result));
  return addStepRows(machines, result);
}

} // namespace qlora
