// SPDX-License-Identifier: MIT

// `--ranks-per-gpu N`: N ranks that follow each other on a machine share a GPU,
// so that layouts can be tried through real NCCL on fewer GPUs than ranks. Rank
// r of a machine uses GPU r / N.
//
// Nothing of a rank changes but its GPU. What is added:
//
//   checkSharing()     before the ranks meet: numbers that N does not divide
//   prepareSharing()   that, and before any thread: NCCL refuses two ranks on
//                      one GPU unless its variables allow it
//   checkSharedRoom()  once all ranks have met: whether the plans of the ranks
//                      of each GPU fit together

#ifndef QLORA_RUNTIME_SESSION_SHAREDGPUS_H
#define QLORA_RUNTIME_SESSION_SHAREDGPUS_H

#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankEnvironment.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

/// The GPU of a rank, of those that its machine shows to it.
inline int gpuOf(const RankEnvironment &env, int ranksPerGpu) {
  return env.localRank / ranksPerGpu;
}

/// kInvalidArgument for a CPU program, for a number of ranks of this machine
/// that is no multiple of `ranksPerGpu`, and for a mesh that neither divides it
/// nor is a multiple of it. 1 is always fine.
Status checkSharing(const LoadedModule &module, int ranksPerGpu,
                    int localRanks);

/// checkSharing(), then sets NCCL's variables in this process, whose rank is
/// `env`'s: from NCCL 2.30 on NCCL_MULTI_RANK_GPU_ENABLE=1, before it a host of its own for each rank
/// (NCCL_HOSTID). Hosts talk through sockets: those of `lo` without InfiniBand
/// where all ranks are on one machine and the user names no others. Call it
/// before NCCL is used and before any thread is started. Does nothing for 1.
Status prepareSharing(const LoadedModule &module, int ranksPerGpu,
                      const RankEnvironment &env);

/// "2 ranks on each GPU; NCCL 2.28.9 with NCCL_HOSTID=...", after
/// prepareSharing(): the variables as they are.
std::string sharingText(int ranksPerGpu);

/// All ranks call it, between opening their GPU and allocating there.
/// kResourceExhausted on the ranks of a GPU whose free memory is less than what
/// their plans need together. Does nothing for 1.
Status checkSharedRoom(const LoadedModule &module, int ranksPerGpu,
                       const RankEnvironment &env, RankGroup &group);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_SHAREDGPUS_H
