// SPDX-License-Identifier: MIT

// `--ranks-per-gpu N`: N consecutive ranks of a machine share a GPU, to test
// layouts with real NCCL on few GPUs. Rank r of a machine uses GPU r / N.
//
// A run calls:
//
//   checkSharing()       before the ranks meet: checks the numbers of ranks
//   prepareSharing()     before any thread starts: calls checkSharing(), then
//                        sets environment variables with which NCCL allows two
//                        ranks on one GPU
//   checkSharedMemory()  once all ranks have met: checks that the plans of the
//                        ranks of each GPU fit together

#ifndef QLORA_RUNTIME_SESSION_SHAREDGPUS_H
#define QLORA_RUNTIME_SESSION_SHAREDGPUS_H

#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankEnvironment.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

/// Returns the index of a rank's GPU among those visible on its machine.
inline int gpuOf(const RankEnvironment &env, int ranksPerGpu) {
  return env.localRank / ranksPerGpu;
}

/// Returns kInvalidArgument for a CPU program, if this machine's number of
/// ranks is not a multiple of `ranksPerGpu`, or if neither the mesh size nor
/// `ranksPerGpu` is a multiple of the other. 1 is always allowed.
Status checkSharing(const LoadedModule &module, int ranksPerGpu,
                    int localRanks);

/// Calls checkSharing(), then sets NCCL's environment variables:
///
///   NCCL 2.30 and later   NCCL_MULTI_RANK_GPU_ENABLE=1
///   earlier versions      a separate NCCL_HOSTID for each rank, so that NCCL
///                         uses sockets. If all ranks are on one machine, also
///                         NCCL_SOCKET_IFNAME=lo and NCCL_IB_DISABLE=1, unless
///                         the user has set these two
///
/// Call it in the process of `env`'s rank, before NCCL is used and before any
/// thread starts. Does nothing if `ranksPerGpu` is 1.
Status prepareSharing(const LoadedModule &module, int ranksPerGpu,
                      const RankEnvironment &env);

/// Returns "2 ranks on each GPU; NCCL 2.28.9 with NCCL_HOSTID=...", with the
/// variables' current values. Call after prepareSharing().
std::string sharingText(int ranksPerGpu);

/// Checks free memory. All ranks call it, after opening their GPU and before
/// allocating. Returns kResourceExhausted on the ranks of a GPU with less free
/// memory than their plans need together. Does nothing if `ranksPerGpu` is 1.
Status checkSharedMemory(const LoadedModule &module, int ranksPerGpu,
                         const RankEnvironment &env, RankGroup &group);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_SHAREDGPUS_H
