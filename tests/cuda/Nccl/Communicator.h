// SPDX-License-Identifier: MIT

// What a communicator of the NCCL look-alike is, and its rules: it must not
// block; a call of it while another is in progress is an error; after an error
// every call gives that error; collectives of a communicator run one after the
// other; a call that is captured is over when all ranks capture it, as where
// NCCL registers the buffers of an NVLink switch; finalising ends when all
// ranks finalise and nothing, graphs included, holds a collective; an abort
// ends when nothing does.
//
// A split is a call of the communicator that is split, by all its ranks, while
// no collective of it is under way. The new communicator is of the ranks with
// one colour, in the order of their keys and, where these are the same, of
// their ranks. The call returns ncclSuccess once it has begun, as NCCL's does:
// the communicator that is split is in progress and the new handle is null
// until all ranks have made the call. Then the handle is there, and is itself
// in progress for a while. From then on the two know nothing of each other.
//
// Two ranks of one host cannot share a card: each must have a host of its own
// (NCCL_HOSTID, with NCCL_SOCKET_IFNAME=lo), or, from version 2.30 on,
// NCCL_MULTI_RANK_GPU_ENABLE must be 1.

#ifndef QLORA_TESTS_CUDA_NCCL_COMMUNICATOR_H
#define QLORA_TESTS_CUDA_NCCL_COMMUNICATOR_H

#include "runtime/Kernels/Cuda/CudaTypes.h"
#include "tests/cuda/Nccl/Exchange.h"

#include <atomic>
#include <functional>
#include <string_view>

namespace qlora {
extern "C" {
#define QLORA_NCCL(Name, Symbol, Parameters) ncclResult_t Symbol Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
const char *ncclGetLastError(ncclComm_t);
const char *ncclGetErrorString(ncclResult_t);
}

namespace platform {
inline constexpr ncclResult_t kNcclSuccess = 0;
} // namespace platform

/// Guarded by the platform's mutex, but for isAborted.
struct ncclComm {
  std::shared_ptr<platform::Exchange> exchange;
  int rank = 0, size = 0, device = 0;
  ncclResult_t error = platform::kNcclSuccess; ///< told from then on
  /// The call in progress: asked until it says something else than
  /// kNcclInProgress. Empty: none.
  std::function<ncclResult_t()> inProgress;
  int questions = 0; ///< before inProgress is asked at all
  std::atomic<bool> isAborted = false;
  bool isFinalized = false;
  uint64_t calls = 0;            ///< of collectives, captured ones too
  uint64_t done = 0;             ///< collectives
  const void *running = nullptr; ///< the one that is published
};

namespace platform {

using Communicator = std::shared_ptr<ncclComm>;

/// The live communicator of a handle, between two calls; or null, having
/// explained why not, with what the call gives back. After an error that is
/// this error.
Communicator usable(const char *symbol, ncclComm_t handle,
                    ncclResult_t &result);

/// Explains on stderr and as the last error, and gives the result back.
ncclResult_t refuse(const char *symbol, ncclResult_t result,
                    std::string_view why);

/// Leaves a call to the questions that follow.
ncclResult_t begin(ncclComm &communicator, std::function<ncclResult_t()> call);

} // namespace platform
} // namespace qlora

#endif // QLORA_TESTS_CUDA_NCCL_COMMUNICATOR_H
