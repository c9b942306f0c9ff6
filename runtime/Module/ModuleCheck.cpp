// SPDX-License-Identifier: MIT

// Checks that fail if a file is from another build or for another CPU.

#include "runtime/Module/ModuleCheck.h"

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Module/ModuleLoader.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

static constexpr uint32_t kMaxShards = 65535;

/// Checks the numbers of fsdp, zero1 and zero2 shards.
static Status checkPieces(const qlora_module &module) {
  const uint32_t shards = module.shards, updates = module.update_pieces;
  const uint32_t trained = module.trained_pieces;
  if (shards == 0 || shards > kMaxShards)
    return damaged("a base sharded over {} ranks", shards);
  if (updates == 0 || updates > kMaxShards ||
      (updates > 1 && shards > 1 && updates != shards))
    return damaged(
        "optimizer states sharded over {} ranks, but the base over {}", updates,
        shards);
  if (trained == 0 || trained > kMaxShards ||
      (trained > 1 && (updates > 1 || (shards > 1 && trained != shards))))
    return damaged("trainable parameters sharded over {} ranks, optimizer "
                   "states over {}, and the base over {}",
                   trained, updates, shards);
  return Status::ok();
}

/// Checks the number of expert-parallel ranks. Groups EP, FSDP and CP consist
/// of consecutive ranks, so one size must divide the other.
static Status checkExperts(const qlora_module &module) {
  const uint32_t experts = module.expert_ranks;
  if (experts == 0 || experts > kMaxShards ||
      (experts > 1 && module.tensor_ranks > 1))
    return damaged("{} expert-parallel ranks with {} tensor-parallel ranks",
                   experts, module.tensor_ranks);
  for (const uint32_t other : {module.shards, module.update_pieces,
                               module.trained_pieces, module.context_ranks})
    if (std::max(experts, other) % std::min(experts, other) != 0)
      return damaged(
          "{} expert-parallel ranks, but tensors or tokens sharded over {}",
          experts, other);
  return Status::ok();
}

/// Checks the number of context-parallel ranks. Groups CP and FSDP consist of
/// consecutive ranks, so one size must divide the other.
static Status checkContext(const qlora_module &module) {
  const uint32_t context = module.context_ranks;
  if (context == 0 || context > kMaxShards)
    return damaged("{} context-parallel ranks", context);
  const uint32_t pieces = std::max(
      {module.shards, module.update_pieces, module.trained_pieces});
  if (std::max(pieces, context) % std::min(pieces, context) != 0)
    return damaged("{} context-parallel ranks, but tensors sharded over {}",
                   context, pieces);
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
  QLORA_RETURN_IF_ERROR(checkPieces(module));
  if (module.tensor_ranks == 0 || module.tensor_ranks > kMaxShards)
    return damaged("{} tensor-parallel ranks", module.tensor_ranks);
  if (module.stages == 0 || module.stages > kMaxShards ||
      module.stage >= module.stages)
    return damaged("stage {} of {}", module.stage, module.stages);
  if (module.run_ranks > kMaxShards)
    return damaged("a program for {} ranks", module.run_ranks);
  QLORA_RETURN_IF_ERROR(checkContext(module));
  return checkExperts(module);
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
      kernel.constant_count != row->op->constants.size())
    return damaged("{} operands and {} constants instead of {} and {}",
                   kernel.operand_count, kernel.constant_count,
                   row->op->operands.size(), row->op->constants.size());
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
