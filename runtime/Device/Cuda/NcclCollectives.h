// SPDX-License-Identifier: MIT

// Collectives of the GPUs of a job, one rank each, by NCCL.
//
//   QLORA_ASSIGN_OR_RETURN(auto gpus, NcclCollectives::connect(nccl, hosts));
//   QLORA_RETURN_IF_ERROR(gpus->run(call, group, stream));
//   queues.setWatch(gpus.get());
//   QLORA_RETURN_IF_ERROR(queues.synchronize());
//
// Bits. NCCL adds an element up on one rank, or in the switch, and sends the
// result to all: every rank has the same bits. K ranks and one rank with K
// accumulations agree to rounding only.
//
// Groups. Each of several ranks has a communicator, which is split off that of
// all ranks where it is not the same.
//
// Bounds. The communicators do not block: a call that NCCL has not finished
// is asked for until it is, and the host's waits for the card go through
// look(). Each ends with an error when NCCL reports one, when another rank is
// gone, or after host.timeout(); running collectives are then aborted, by a
// thread of its own, since NCCL may take long for it: the end of this object
// waits for a second. The cause is what the rank that failed first reports: an
// error that comes of another rank's end is kAborted.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_NCCLCOLLECTIVES_H
#define QLORA_RUNTIME_DEVICE_CUDA_NCCLCOLLECTIVES_H

#include <array>
#include <cstdint>
#include <future>
#include <memory>

#include "runtime/Device/Collectives.h"
#include "runtime/Device/Cuda/CudaQueues.h"
#include "runtime/Device/Cuda/NcclApi.h"

namespace qlora {

class NcclCollectives final : public HostWatch {
public:
  /// Meets the other ranks of `hosts`, of which that of DP is not null; null:
  /// nothing is done there. They outlive this, as does `nccl`. The context of
  /// this rank's card is current.
  static StatusOr<std::unique_ptr<NcclCollectives>>
  connect(const Nccl &nccl, const GroupCollectives &hosts,
          const GroupSizes &sizes);
  /// Leaves the group together with the other ranks, or aborts where they do
  /// not come. Graphs that hold collectives have to be gone.
  ~NcclCollectives() override;

  /// In the order of the stream, or in its capture. The same calls in the same
  /// order on every rank, and each call captured on all of them or on none;
  /// NCCL may make them meet in a capture (it registers the buffers of an
  /// NVLink switch there). `group` has more than one rank.
  Status run(const CollectiveCall &call, qlora_group group, CUstream stream);

  Status look(std::chrono::nanoseconds waited) override;
  Status confirm() override;
  Status judge(Status failure) override;

  /// Makes collectives that are running end, with whatever they have. Does
  /// not wait for it: NCCL itself waits until graphs that hold collectives
  /// are gone.
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
  /// Waits until the call on a communicator that returned `result` has taken
  /// effect.
  Status finish(const char *what, ncclComm_t communicator, ncclResult_t result,
                std::chrono::nanoseconds bound);
  /// One look at what it is at; `state` tells whether it is done.
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
  Collectives &host; ///< of all ranks
  /// By group; null: the one of all ranks is used, or this rank is alone there.
  /// An abort keeps them until it ends: NCCL may still write to one by then.
  using Handles = std::array<ncclComm_t, QLORA_GROUP_COUNT>;
  const std::shared_ptr<Handles> handles = std::make_shared<Handles>();
  Handles &communicators = *handles;
  ncclComm_t &all = communicators[QLORA_GROUP_DP];
  std::future<void> aborting; ///< valid once aborted
  std::chrono::steady_clock::time_point lastChecked;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_NCCLCOLLECTIVES_H
