// SPDX-License-Identifier: MIT

// Checks that fail if a file is from another build or for another CPU.

#include "runtime/Module/ModuleCheck.h"

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/ParallelMesh.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

/// Largest number of ranks of a run: train.so has 16 bits for it.
static constexpr uint32_t kMaxRunRanks = 65535;

/// Checks the numbers of ranks and the stage.
static Status checkMesh(const qlora_module &module) {
  const ParallelMesh mesh(module.mesh);
  if (const Status status = mesh.check(); !status.isOk())
    return damaged("its mesh is not valid ({})", status.message());
  if (module.stage >= mesh.pp)
    return damaged("stage {} of {}", module.stage, mesh.pp);
  if (module.run_ranks > kMaxRunRanks)
    return damaged("a program for {} ranks", module.run_ranks);
  return Status::ok();
}

static Status checkHeader(const qlora_module &module) {
  if (module.magic != QLORA_MODULE_MAGIC)
    return damaged("not a program of qloracc: magic {:#x} instead of {:#x}",
                   module.magic, QLORA_MODULE_MAGIC);
  if (module.abi_version != QLORA_ABI_VERSION)
    return Status::unavailable("it has format version {}, but this qlora-run "
                               "reads {}. Fix: compile the model again with "
                               "the qloracc of the same build",
                               module.abi_version, QLORA_ABI_VERSION);
  if (module.module_bytes != sizeof(qlora_module))
    return damaged("its module table has {} bytes instead of {}",
                   module.module_bytes, sizeof(qlora_module));
  if (module.target != QLORA_TARGET_CPU && module.target != QLORA_TARGET_CUDA)
    return damaged("unknown target {}", module.target);
  return checkMesh(module);
}

static Status checkLibraryKernel(const qlora_module &m,
                                 const qlora_kernel &kernel) {
  const KernelRow *row = findKernelRow(kernel.name);
  if (!row)
    return Status::unavailable(
        "this qlora-run has no library kernel of that name. Fix: compile the "
        "model again with the qloracc of the same build");
  const std::string_view target =
      m.target == QLORA_TARGET_CUDA ? "cuda" : "cpu";
  if (row->target != target)
    return damaged("a kernel of target {} in a module for {}", row->target,
                   target);
  if (kernel.operand_count != row->op->operands.size() ||
      kernel.constant_count != row->op->neededConstants)
    return damaged("{} operands and {} constants instead of {} and {}",
                   kernel.operand_count, kernel.constant_count,
                   row->op->operands.size(), row->op->neededConstants);
  return Status::ok();
}

/// Returns the features in the "flags" (x86) or "Features" (Arm) line of CPU 0.
static std::set<std::string> readCpuFeatures() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (!line.starts_with("flags") && !line.starts_with("Features"))
      continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::set<std::string> features;
    for (std::string word; words >> word;)
      features.insert(word);
    return features;
  }
  return {};
}

/// Returns kUnavailable if this CPU lacks one of a module's comma-separated
/// features; names the missing ones.
static Status checkCpuFeatures(const char *needed) {
  const std::set<std::string> present = readCpuFeatures();
  std::istringstream list(needed);
  std::vector<std::string> missing;
  for (std::string feature; std::getline(list, feature, ',');)
    if (!feature.empty() && !present.contains(feature))
      missing.push_back(feature);
  if (missing.empty())
    return Status::ok();
  return Status::unavailable(
      "it was compiled for instructions that this CPU lacks: {}. Fix: compile "
      "the model on this machine",
      fmt::join(missing, ", "));
}

static Status checkProgram(const qlora_module &m) {
  QLORA_RETURN_IF_ERROR(checkHeader(m));
  for (uint32_t i = 0; i < m.kernel_count; ++i) {
    const qlora_kernel &kernel = m.kernels[i];
    if (isGenerated(kernel))
      continue;
    if (Status status = checkLibraryKernel(m, kernel); !status.isOk())
      return status.withContext(fmt::format("kernel '{}'", kernel.name));
  }
  return checkCpuFeatures(m.cpu_features);
}

/// Terminates even if the list of stages is cyclic: stage i must have number i.
Status checkModule(const qlora_module &first) {
  const qlora_module *stage = &first;
  for (uint32_t number = 0; stage; ++number, stage = stage->next_stage) {
    Status status = checkProgram(*stage);
    if (status.isOk())
      status = checkStage(first, *stage, number);
    if (!status.isOk())
      return number == 0 ? status
                         : status.withContext(fmt::format("stage {}", number));
  }
  return Status::ok();
}

} // namespace qlora
