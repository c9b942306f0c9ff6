// SPDX-License-Identifier: MIT

// Creates and destroys communicators, runs collectives, and bounds waits.

#include "runtime/Device/Cuda/NcclCollectives.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "runtime/Kernels/KernelTable.h"

namespace qlora {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// Maximum time for an abort, and for leaving the group. Launchers give ranks
/// more time before they kill them, so a rank can still report its error.
static constexpr auto kAbortBound = 1s;
/// How often the host checks the other ranks while it waits.
static constexpr auto kCheckInterval = 50ms;
/// How long the host checks, after a failure, whether another rank has ended.
static constexpr auto kFarewell = 100ms;
static constexpr auto kPause = 100us;

/// Returns rank 0's id on all ranks.
StatusOr<ncclUniqueId> NcclCollectives::shareUniqueId() {
  ncclUniqueId id{};
  if (host.rank() == 0)
    QLORA_RETURN_IF_ERROR(nccl.check(nccl.getUniqueId(&id), "ncclGetUniqueId"));
  QLORA_ASSIGN_OR_RETURN(
      const std::vector<std::vector<ncclUniqueId>> ids,
      host.allGatherValues(std::span<const ncclUniqueId>(&id, 1)));
  return ids[0][0];
}

Status NcclCollectives::initialise() {
  // Text of the error on every rank: judge() quotes it even if another rank has
  // ended first.
  constexpr const char *kCall =
      "the GPUs cannot connect (each rank needs its own GPU, number "
      "LOCAL_RANK, or --ranks-per-gpu): ncclCommInitRankConfig";
  QLORA_ASSIGN_OR_RETURN(ncclUniqueId id, shareUniqueId());
  ncclConfig_t config;
  config.blocking = 0;
  // A separate statement, because the call sets `all`, an argument of finish().
  const ncclResult_t result =
      nccl.commInitRankConfig(&all, host.size(), id, host.rank(), &config);
  QLORA_RETURN_IF_ERROR(finish(kCall, all, result, host.timeout()));
  for (unsigned group = 0; group < QLORA_GROUP_COUNT; ++group)
    if (hosts[group] && sizes[group] > 1 && sizes[group] < host.size())
      QLORA_RETURN_IF_ERROR(split(static_cast<qlora_group>(group)));
  return Status::ok();
}

/// Whether the handle is set. One of NCCL's threads sets it.
static bool isThere(ncclComm_t &handle) {
  return std::atomic_ref(handle).load(std::memory_order_acquire) != nullptr;
}

/// Splits a group's communicator off the world communicator. ncclSuccess means
/// that the split has begun. Until all ranks have made the call, the parent is
/// in progress and the new handle is null. After that, the new communicator
/// must finish its initialization.
Status NcclCollectives::split(qlora_group group) {
  constexpr const char *kCall = "ncclCommSplit";
  if (!nccl.commSplit)
    return Status::unavailable(
        "groups of {} of {} GPUs ({}) need NCCL 2.18 or later; update it, or "
        "start {} GPUs",
        sizes[group], host.size(), kGroups[group].title, sizes[group]);
  ncclConfig_t config;
  config.blocking = 0;
  const auto first = static_cast<int>(sizes.first(group, host.rank()));
  ncclComm_t &part = communicators[group];
  const Clock::time_point start = Clock::now();
  ncclResult_t state =
      nccl.commSplit(all, first, hostOf(group).rank(), &part, &config);
  if (Status status = nccl.check(state, kCall); !status.isOk())
    return judge(status);
  do {
    std::this_thread::sleep_for(kPause);
    QLORA_RETURN_IF_ERROR(
        progress(kCall, all, state, Clock::now() - start, host.timeout()));
  } while (state == kNcclInProgress || !isThere(part));
  return finish(kCall, part, kNcclInProgress, host.timeout());
}

StatusOr<std::unique_ptr<NcclCollectives>>
NcclCollectives::connect(const Nccl &nccl, const GroupCollectives &hosts,
                         const GroupSizes &sizes) {
  std::unique_ptr<NcclCollectives> gpus(
      new NcclCollectives(nccl, hosts, sizes));
  QLORA_RETURN_IF_ERROR(gpus->initialise());
  return gpus;
}

NcclCollectives::~NcclCollectives() {
  // Destroy sub-communicators before the world communicator.
  if (!std::all_of(communicators.rbegin(), communicators.rend(),
                   [&](ncclComm_t &each) { return leave(each); }))
    abort();
  if (aborting.valid())
    aborting.wait_for(kAbortBound);
}

/// Destroys a communicator after the ranks stop accessing each other's memory.
bool NcclCollectives::leave(ncclComm_t &communicator) {
  if (aborting.valid())
    return false;
  if (!communicator)
    return true;
  Status status = finish("ncclCommFinalize", communicator,
                         nccl.commFinalize(communicator), kAbortBound);
  if (status.isOk())
    status = nccl.check(nccl.commDestroy(communicator), "ncclCommDestroy");
  if (status.isOk())
    communicator = nullptr;
  return status.isOk();
}

Status NcclCollectives::checkOthersNowAndThen() {
  const Clock::time_point now = Clock::now();
  if (now - lastChecked < kCheckInterval)
    return Status::ok();
  lastChecked = now;
  return host.checkOthers();
}

/// Refuses calls after abort(), whose thread then owns the communicators.
Status NcclCollectives::checkUse() const {
  if (!aborting.valid())
    return Status::ok();
  return Status::error(StatusCode::kAborted,
                       "communication between GPUs was aborted earlier; see "
                       "the first error");
}

Status NcclCollectives::checkState(const char *what, ncclComm_t communicator,
                                   ncclResult_t &state) {
  QLORA_RETURN_IF_ERROR(checkUse());
  QLORA_RETURN_IF_ERROR(nccl.check(nccl.commGetAsyncError(communicator, &state),
                                   "ncclCommGetAsyncError"));
  return nccl.check(state, what);
}

static Status takesTooLong(const char *what, std::chrono::nanoseconds bound) {
  return Status::unavailable(
      "{} has not ended after {} s: another rank hangs, or "
      "needs a longer --ddp-timeout",
      what, std::chrono::duration<double>(bound).count());
}

Status NcclCollectives::progress(const char *what, ncclComm_t communicator,
                                 ncclResult_t &state,
                                 std::chrono::nanoseconds waited,
                                 std::chrono::nanoseconds bound) {
  state = 0;
  if (Status status = checkState(what, communicator, state); !status.isOk())
    return judge(status);
  Status status = checkOthersNowAndThen();
  if (status.isOk() && waited > bound)
    status = takesTooLong(what, bound);
  if (!status.isOk())
    abort();
  return status;
}

Status NcclCollectives::finish(const char *what, ncclComm_t communicator,
                               ncclResult_t result,
                               std::chrono::nanoseconds bound) {
  const Clock::time_point start = Clock::now();
  if (Status status = nccl.check(result, what); !status.isOk())
    return judge(status);
  while (result == kNcclInProgress) {
    std::this_thread::sleep_for(kPause);
    QLORA_RETURN_IF_ERROR(
        progress(what, communicator, result, Clock::now() - start, bound));
  }
  return Status::ok();
}

static int ncclTypeOf(qlora_dtype dtype) {
  switch (dtype) {
  case QLORA_DTYPE_F32:
    return kNcclFloat32;
  case QLORA_DTYPE_BF16:
    return kNcclBfloat16;
  case QLORA_DTYPE_F16:
    return kNcclFloat16;
  case QLORA_DTYPE_I32:
    return kNcclInt32;
  case QLORA_DTYPE_I8:
    return kNcclInt8;
  default:
    return kNcclUint8;
  }
}

/// Runs an all-to-all, which NCCL lacks, as a send to and a receive from each
/// rank. Grouped calls start together at groupEnd(), so none waits for another.
ncclResult_t NcclCollectives::allToAll(const CollectiveCall &call,
                                       qlora_group group, int type,
                                       CUstream stream) {
  const ncclComm_t communicator = communicatorOf(group);
  const auto size = static_cast<size_t>(hostOf(group).size());
  const size_t bytes = call.from.size() / size;
  const size_t count = bytes / (dtypeBits(call.dtype) / 8);
  if (const ncclResult_t result = nccl.groupStart())
    return result;
  for (size_t rank = 0; rank < size; ++rank) {
    const int peer = static_cast<int>(rank);
    nccl.send(call.from.data() + rank * bytes, count, type, peer, communicator,
              stream);
    nccl.recv(call.to.data() + rank * bytes, count, type, peer, communicator,
              stream);
  }
  // groupEnd() also returns errors of the calls since groupStart().
  return nccl.groupEnd();
}

/// Returns the rank `places` after this one, cyclically.
static int rankAt(const Collectives &group, int places) {
  const int size = group.size();
  return ((group.rank() + places) % size + size) % size;
}

ncclResult_t NcclCollectives::start(const CollectiveCall &call,
                                    qlora_group group, CUstream stream) {
  const ncclComm_t communicator = communicatorOf(group);
  const size_t element = dtypeBits(call.dtype) / 8;
  const int type = ncclTypeOf(call.dtype);
  const size_t received = call.to.size() / element;
  const size_t sent = call.from.size() / element;
  const int other = rankAt(hostOf(group), call.peer);
  void *to = call.to.data();
  const void *from = call.from.data();
  switch (call.kind) {
  case QLORA_COLLECTIVE_ALL_REDUCE:
    return nccl.allReduce(to, to, received, type, kNcclSum, communicator,
                          stream);
  case QLORA_COLLECTIVE_ALL_GATHER:
    return nccl.allGather(from, to, sent, type, communicator, stream);
  case QLORA_COLLECTIVE_REDUCE_SCATTER:
    return nccl.reduceScatter(from, to, received, type, kNcclSum, communicator,
                              stream);
  case QLORA_COLLECTIVE_BROADCAST:
    return nccl.broadcast(to, to, received, type, call.peer, communicator,
                          stream);
  case QLORA_COLLECTIVE_ALL_TO_ALL:
    return allToAll(call, group, type, stream);
  case QLORA_COLLECTIVE_SEND:
    return nccl.send(from, sent, type, other, communicator, stream);
  default:
    return nccl.recv(to, received, type, other, communicator, stream);
  }
}

Status NcclCollectives::run(const CollectiveCall &call, qlora_group group,
                            CUstream stream) {
  static constexpr const char *kNames[QLORA_COLLECTIVE_COUNT] = {
      "ncclAllReduce", "ncclAllGather",        "ncclReduceScatter",
      "ncclBroadcast", "ncclSend and ncclRecv", "ncclSend",
      "ncclRecv"};
  QLORA_RETURN_IF_ERROR(checkUse());
  return finish(kNames[call.kind], communicatorOf(group),
                start(call, group, stream), host.timeout());
}

static constexpr const char *kOnTheGpu = "a collective on the GPU";

Status NcclCollectives::look(std::chrono::nanoseconds waited) {
  ncclResult_t state = 0;
  for (const ncclComm_t each : communicators)
    if (each)
      QLORA_RETURN_IF_ERROR(
          progress(kOnTheGpu, each, state, waited, host.timeout()));
  return Status::ok();
}

/// Checks NCCL's states: the GPU reports no error for a failed collective.
Status NcclCollectives::confirm() {
  ncclResult_t state = 0;
  for (const ncclComm_t each : communicators)
    if (each)
      if (Status status = checkState(kOnTheGpu, each, state); !status.isOk())
        return judge(status);
  return Status::ok();
}

/// Aborts, and returns kAborted if another rank's end may be the cause of the
/// failure, else `failure`.
Status NcclCollectives::judge(Status failure) {
  abort();
  const Clock::time_point start = Clock::now();
  do {
    if (Status gone = host.checkOthers(); !gone.isOk())
      return Status::error(StatusCode::kAborted, "{} ({})", gone.message(),
                           failure.message());
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() - start < kFarewell);
  return failure;
}

/// Number of threads inside ncclCommAbort.
static std::atomic<int> aborts{0};

/// Exits at once if the process ends while an abort hangs. Destructors would
/// destroy objects that the abort thread uses.
static void endBesideAbort(int exitCode, void *) {
  if (aborts == 0)
    return;
  std::fflush(nullptr);
  _exit(exitCode);
}

void NcclCollectives::abort() {
  if (!all || aborting.valid())
    return;
  on_exit(endBesideAbort, nullptr);
  ++aborts;
  std::promise<void> done;
  aborting = done.get_future();
  std::thread([abort = nccl.commAbort, handles = handles,
               done = std::move(done)]() mutable {
    // Errors are ignored, because the cause of the abort is reported.
    for (size_t i = handles->size(); i-- > 0;)
      if (isThere((*handles)[i]))
        (void)abort((*handles)[i]);
    --aborts;
    done.set_value();
  }).detach();
}

} // namespace qlora
