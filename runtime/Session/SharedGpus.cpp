// SPDX-License-Identifier: MIT

// Checks rank counts, sets NCCL's variables, and sums the plans per GPU.

#include "runtime/Session/SharedGpus.h"

#include <algorithm>
#include <cstdlib>

#include "runtime/Base/Amounts.h"
#include "runtime/Device/Cuda/NcclApi.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"
#include "runtime/Ranks/LocalRanks.h"
#include "runtime/Session/ProgramChoice.h"

namespace qlora {

/// The first NCCL version with NCCL_MULTI_RANK_GPU_ENABLE.
static constexpr int kFirstThatShares = 23000;

static constexpr const char *kMultiRank = "NCCL_MULTI_RANK_GPU_ENABLE";
static constexpr const char *kHostId = "NCCL_HOSTID";
static constexpr const char *kInterface = "NCCL_SOCKET_IFNAME";
static constexpr const char *kNoInfiniBand = "NCCL_IB_DISABLE";

Status checkSharing(const LoadedModule &module, int ranksPerGpu,
                    int localRanks) {
  if (ranksPerGpu == 1)
    return Status::ok();
  if (module.table().target != QLORA_TARGET_CUDA)
    return Status::invalid("--ranks-per-gpu {}: '{}' was compiled for the cpu. "
                           "Fix: leave --ranks-per-gpu out",
                           ranksPerGpu, module.path());
  if (localRanks % ranksPerGpu != 0)
    return Status::invalid("--ranks-per-gpu {} does not divide the {} rank{} "
                           "of this machine. Fix: --gpus {}",
                           ranksPerGpu, localRanks, localRanks == 1 ? "" : "s",
                           (localRanks / ranksPerGpu + 1) * ranksPerGpu);
  const int64_t mesh = module.groups().meshSize();
  if (mesh % ranksPerGpu == 0 || ranksPerGpu % mesh == 0)
    return Status::ok();
  return Status::invalid("--ranks-per-gpu {} does not divide the mesh of {} "
                         "ranks that '{}' was compiled for. Fix: "
                         "--ranks-per-gpu {}",
                         ranksPerGpu, mesh, module.path(), mesh);
}

static Status allowSharing(const RankEnvironment &env) {
  QLORA_ASSIGN_OR_RETURN(const Nccl *nccl, Nccl::open());
  if (nccl->version >= kFirstThatShares) {
    setenv(kMultiRank, "1", /*overwrite=*/1);
    return Status::ok();
  }
  // Replace an earlier value: a launcher may have given all ranks the same id.
  setenv(kHostId, fmt::format("qlora-rank-{}", env.rank).c_str(),
         /*overwrite=*/1);
  if (env.localWorldSize < env.worldSize)
    return Status::ok();
  setenv(kInterface, "lo", /*overwrite=*/0);
  setenv(kNoInfiniBand, "1", /*overwrite=*/0);
  return Status::ok();
}

Status prepareSharing(const LoadedModule &module, int ranksPerGpu,
                      const RankEnvironment &env) {
  QLORA_RETURN_IF_ERROR(checkSharing(module, ranksPerGpu, env.localWorldSize));
  return ranksPerGpu == 1 ? Status::ok() : allowSharing(env);
}

std::string sharingText(int ranksPerGpu) {
  const auto nccl = Nccl::open();
  std::string text = fmt::format("{} ranks on each GPU", ranksPerGpu);
  if (!nccl.isOk())
    return text;
  const int version = nccl.value()->version;
  text += fmt::format("; NCCL {}.{}.{} with", version / 10000,
                      version % 10000 / 100, version % 100);
  const bool shares = version >= kFirstThatShares;
  for (const char *name : {kMultiRank, kHostId, kInterface, kNoInfiniBand})
    if (const char *value = getenv(name);
        value && shares == (name == kMultiRank))
      text += fmt::format(" {}={}", name, value);
  return text;
}

namespace {
struct Need {
  int64_t first = 0;    ///< first rank that uses the GPU
  uint64_t planned = 0; ///< bytes that the rank plans
  uint64_t free = 0;    ///< free bytes before any rank has allocated
};
} // namespace

Status checkSharedMemory(const LoadedModule &module, int ranksPerGpu,
                         const RankEnvironment &env, RankGroup &group) {
  if (ranksPerGpu == 1)
    return Status::ok();
  const int ordinal = gpuOf(env, ranksPerGpu);
  QLORA_ASSIGN_OR_RETURN(const CudaDriver *driver, CudaDriver::open());
  QLORA_ASSIGN_OR_RETURN(const CudaGpu gpu, CudaGpu::open(*driver, ordinal));
  // On return, all ranks have a CUDA context and have allocated nothing else.
  QLORA_ASSIGN_OR_RETURN(
      const LocalRanks sharing,
      LocalRanks::find(group.collectives(), fmt::format("GPU {}", ordinal)));
  QLORA_ASSIGN_OR_RETURN(const CudaMemoryInfo memory, gpu.memory());
  const Need own = {sharing.first(), plannedOnGpu(module), memory.free};
  QLORA_ASSIGN_OR_RETURN(
      const std::vector<std::vector<Need>> needs,
      group.collectives().allGatherValues(std::span(&own, 1)));
  uint64_t planned = 0, free = memory.free;
  for (const std::vector<Need> &need : needs)
    if (need[0].first == own.first) {
      planned += need[0].planned;
      free = std::min(free, need[0].free);
    }
  if (planned <= free)
    return Status::ok();
  const auto ranks = static_cast<uint64_t>(sharing.size());
  return Status::error(
      StatusCode::kResourceExhausted,
      "GPU {} ({}) has {} of {} free, but the plans of its {} ranks need {} "
      "together (--ranks-per-gpu). Fix: compile with --memory-limit {}MiB",
      ordinal, gpu.name, formatBytes(free), formatBytes(memory.total), ranks,
      formatBytes(planned), free / ranks >> 20);
}

} // namespace qlora
