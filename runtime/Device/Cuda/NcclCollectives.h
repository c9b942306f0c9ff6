// SPDX-License-Identifier: MIT

// Collectives between the GPUs of a job, one rank each, with NCCL.
//
//   QLORA_ASSIGN_OR_RETURN(auto gpus, NcclCollectives::connect(nccl, hosts));
//   QLORA_RETURN_IF_ERROR(gpus->run(call, group, stream));
//   queues.setWatch(gpus.get());
//   QLORA_RETURN_IF_ERROR(queues.synchronize());
//
// Bits. NCCL sums an element on one rank, or in the switch, and sends the
// result to all: every rank has the same bits. K ranks and one rank with K
// accumulation steps agree only up to rounding.
//
// Groups. Each group of several ranks has a communicator. It is split off the
// world communicator, unless the group is all ranks.
//
// Bounds. The communicators do not block: unfinished NCCL calls are polled, and
// the host's waits for the GPU go through look(). Each wait ends with an error
// when NCCL reports one, when another rank is gone, or after host.timeout().
// Running collectives are then aborted on a separate thread, because an abort
// may take long; the destructor waits one second for it. The rank that failed
// first reports the cause; errors that another rank's end has caused are
// kAborted.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_NCCLCOLLECTIVES_H
#define QLORA_RUNTIME_DEVICE_CUDA_NCCLCOLLECTIVES_H

#include <array>
#include <future>
#include <memory>

#include "runtime/Device/Collectives.h"
#include "runtime/Device/Cuda/CudaQueues.h"
#include "runtime/Device/Cuda/NcclApi.h"

namespace qlora {

class NcclCollectives final : public HostWatch {
public:
  /// Connects to the other ranks of `hosts`. `hosts[DP]` is not null; groups
  /// that are null get no communicator. `hosts` and `nccl` outlive this. The
  /// CUDA context of this rank's GPU must be current.
  static StatusOr<std::unique_ptr<NcclCollectives>>
  connect(const Nccl &nccl, const GroupCollectives &hosts,
          const GroupSizes &sizes);
  /// Leaves the group together with the other ranks; aborts if they do not
  /// leave in time. Graphs with collectives must be destroyed before.
  ~NcclCollectives() override;

  /// Enqueues a collective on the stream, or in its capture. All ranks make the
  /// same calls in the same order, and each call is captured on all ranks or on
  /// none. During a capture, NCCL may synchronize ranks to register buffers
  /// with an NVLink switch. `group` has more than one rank.
  Status run(const CollectiveCall &call, qlora_group group, CUstream stream);

  Status look(std::chrono::nanoseconds waited) override;
  Status confirm() override;
  Status judge(Status failure) override;

  /// Makes running collectives end with undefined results. Does not wait for
  /// the abort, which runs on another thread: NCCL ends it only after graphs
  /// with collectives are destroyed.
  void abort();

private:
  NcclCollectives(const Nccl &nccl, const GroupCollectives &hosts,
                  const GroupSizes &sizes)
      : nccl(nccl), hosts(hosts), sizes(sizes), host(*hosts[QLORA_GROUP_DP]) {}
  Status initialise();
  Status split(qlora_group group);
  const Collectives &hostOf(qlora_group group) const { return *hosts[group]; }
  ncclComm_t communicatorOf(qlora_group group) const {
    return communicators[group] ? communicators[group] : all;
  }
  StatusOr<ncclUniqueId> shareUniqueId();
  ncclResult_t start(const CollectiveCall &call, qlora_group group,
                     CUstream stream);
  ncclResult_t allToAll(const CollectiveCall &call, qlora_group group, int type,
                        CUstream stream);
  /// Waits until a communicator's call, which returned `result`, is complete.
  Status finish(const char *what, ncclComm_t communicator, ncclResult_t result,
                std::chrono::nanoseconds bound);
  /// Polls a call once; `state` receives its state from NCCL.
  Status progress(const char *what, ncclComm_t communicator,
                  ncclResult_t &state, std::chrono::nanoseconds waited,
                  std::chrono::nanoseconds bound);
  Status checkUse() const;
  Status checkState(const char *what, ncclComm_t communicator,
                    ncclResult_t &state);
  Status checkOthersNowAndThen();
  bool leave(ncclComm_t &communicator);

  const Nccl &nccl;
  const GroupCollectives hosts;
  const GroupSizes sizes;
  Collectives &host; ///< all ranks
  /// Null for groups that use the world communicator or have one rank. The
  /// abort thread shares ownership, because NCCL may still write to a handle.
  using Handles = std::array<ncclComm_t, QLORA_GROUP_COUNT>;
  const std::shared_ptr<Handles> handles = std::make_shared<Handles>();
  Handles &communicators = *handles;
  ncclComm_t &all = communicators[QLORA_GROUP_DP];
  std::future<void> aborting; ///< valid once aborted
  std::chrono::steady_clock::time_point lastChecked;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_NCCLCOLLECTIVES_H
