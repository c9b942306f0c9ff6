// SPDX-License-Identifier: MIT

// Compares the plans' memory with a GPU's.

#include "runtime/Session/ProgramChoice.h"

#include "runtime/Device/Collectives.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"
#include "runtime/Session/SharedGpus.h"

namespace qlora {

size_t largestThatFits(std::span<const uint64_t> planned, uint64_t free) {
  size_t smallest = 0;
  std::optional<size_t> best;
  for (size_t i = 0; i < planned.size(); ++i) {
    if (planned[i] < planned[smallest])
      smallest = i;
    if (planned[i] <= free && (!best || planned[i] > planned[*best]))
      best = i;
  }
  return best.value_or(smallest);
}

static StatusOr<uint64_t> freeOnGpu(int ordinal) {
  QLORA_ASSIGN_OR_RETURN(const CudaDriver *driver, CudaDriver::open());
  QLORA_ASSIGN_OR_RETURN(const CudaGpu gpu, CudaGpu::open(*driver, ordinal));
  QLORA_ASSIGN_OR_RETURN(const CudaMemoryInfo memory, gpu.memory());
  return memory.free;
}

uint64_t plannedOnGpu(const LoadedModule &module) {
  uint64_t bytes = 0;
  for (const qlora_arena &arena : module.arenas())
    bytes += isOnHost(arena) ? 0 : arena.bytes;
  return bytes;
}

StatusOr<std::string> chooseProgram(const std::vector<std::string> &programs,
                                    const RankEnvironment &env,
                                    int ranksPerGpu) {
  if (programs.size() == 1)
    return programs[0];
  std::vector<uint64_t> planned;
  for (const std::string &program : programs) {
    QLORA_ASSIGN_OR_RETURN(LoadedModule module, LoadedModule::open(program));
    if (module.table().target != QLORA_TARGET_CUDA)
      return Status::invalid("expects one program, but got '{}' and '{}': only "
                             "programs for GPUs of different memory sizes can "
                             "be given together, and '{}' is for CPUs",
                             programs[0], programs[1], program);
    QLORA_RETURN_IF_ERROR(checkMesh(module, env.worldSize));
    module.chooseRank(env.rank, env.worldSize);
    planned.push_back(plannedOnGpu(module));
  }
  QLORA_ASSIGN_OR_RETURN(const uint64_t free,
                         freeOnGpu(gpuOf(env, ranksPerGpu)));
  return programs[largestThatFits(planned,
                                  free / static_cast<uint64_t>(ranksPerGpu))];
}

} // namespace qlora
