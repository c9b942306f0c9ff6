// SPDX-License-Identifier: MIT

// The communicator of the NCCL look-alike and its rules. The communicator is
// non-blocking. A call while another call is in progress is an error. After an
// error every call returns that error. Collectives run one after the other. A
// captured call completes when all ranks capture it, as in NCCL when it
// registers buffers for an NVLink switch. Finalising completes when all ranks
// finalise and no collective is left, even in a graph. An abort completes when
// no collective is left on this rank.
//
// A split is a call of the parent communicator, made by all its ranks, while
// none of its collectives is under way. The new communicator has the ranks of
// one colour, ordered by key and, for equal keys, by rank. The call returns
// ncclSuccess once it has begun, as NCCL's does: the parent is in progress and
// the new handle is null until all ranks have made the call. Then the handle is
// set, and is itself in progress for a while. From then on the two
// communicators are independent.
//
// Two ranks of one host cannot share a GPU: each must have a separate host
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

/// Guarded by the platform's mutex, except `isAborted`.
struct ncclComm {
  std::shared_ptr<platform::Exchange> exchange;
  int rank = 0, size = 0, device = 0;
  ncclResult_t error = platform::kNcclSuccess; ///< returned by all later calls
  /// The call in progress, polled until it returns something other than
  /// kNcclInProgress. Empty if there is none.
  std::function<ncclResult_t()> inProgress;
  int questions = 0; ///< remaining polls before inProgress is called
  std::atomic<bool> isAborted = false;
  bool isFinalized = false;
  uint64_t calls = 0;            ///< of collectives, including captured ones
  uint64_t done = 0;             ///< finished collectives
  const void *running = nullptr; ///< identifies the published collective
};

namespace platform {

using Communicator = std::shared_ptr<ncclComm>;

/// Returns the live communicator of a handle if no call is in progress.
/// Otherwise explains why not, sets `result` and returns null. After an error,
/// `result` is that error.
Communicator usable(const char *symbol, ncclComm_t handle,
                    ncclResult_t &result);

/// Explains the error on stderr, stores it as the last error, and returns
/// `result`.
ncclResult_t refuse(const char *symbol, ncclResult_t result,
                    std::string_view why);

/// Starts a call whose progress is made by later polls.
ncclResult_t begin(ncclComm &communicator, std::function<ncclResult_t()> call);

} // namespace platform
} // namespace qlora

#endif // QLORA_TESTS_CUDA_NCCL_COMMUNICATOR_H
