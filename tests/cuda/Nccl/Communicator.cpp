// SPDX-License-Identifier: MIT

// Communicators, from the creation of their id to their destruction.

#include "tests/cuda/Nccl/Communicator.h"

#include "tests/cuda/Driver/Api.h"
#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Objects.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <thread>

namespace qlora {
namespace platform {

static constexpr unsigned kMagic = 0xcafebeef;
static constexpr unsigned kFirstVersion = 21400;
/// The first version in which ranks may share a GPU, if
/// NCCL_MULTI_RANK_GPU_ENABLE allows it.
static constexpr int kFirstThatShares = 23000;
/// Number of polls before a call completes, so that a caller must poll.
static constexpr int kQuestions = 3;

static std::map<ncclComm_t, Communicator> &live() {
  static std::map<ncclComm_t, Communicator> live;
  return live;
}

static std::string &lastError() {
  static std::string text;
  return text;
}

ncclResult_t refuse(const char *symbol, ncclResult_t result,
                    std::string_view why) {
  lastError() = why;
  explain(fmt::format("{}: {}", symbol, why));
  return result;
}

ncclResult_t begin(ncclComm &communicator, std::function<ncclResult_t()> call) {
  communicator.inProgress = std::move(call);
  communicator.questions = kQuestions;
  return kNcclInProgress;
}

Communicator usable(const char *symbol, ncclComm_t handle,
                    ncclResult_t &result) {
  const auto found = live().find(handle);
  if (found == live().end()) {
    result = refuse(symbol, kNcclInvalidArgument, "no live communicator");
    return nullptr;
  }
  const Communicator &communicator = found->second;
  result = kNcclSuccess;
  if (communicator->inProgress)
    result = refuse(symbol, kNcclInvalidUsage,
                    "another call is still in progress");
  else if (communicator->isAborted)
    result = refuse(symbol, kNcclInvalidUsage, "the communicator was aborted");
  else if (communicator->error)
    result = refuse(symbol, communicator->error, "it has failed before");
  return result ? nullptr : communicator;
}

static std::string_view variable(const char *name) {
  const char *value = std::getenv(name);
  return value ? value : "";
}

/// Returns the identity of the host that this rank reports.
static uint64_t hostId() {
  return std::hash<std::string_view>()(variable("NCCL_HOSTID"));
}

/// Checks that all ranks have joined, each with a separate GPU unless they may
/// share one. Hosts connect over sockets of the named interface; the platform
/// has only one interface.
static ncclResult_t checkGroup(const char *symbol, ncclComm &communicator) {
  if (!communicator.exchange->haveAllJoined())
    return kNcclInProgress;
  if (communicator.exchange->hasOtherHost() &&
      variable("NCCL_SOCKET_IFNAME") != "lo")
    return refuse(symbol, kNcclSystemError, "no socket interface found");
  const int other = communicator.exchange->rankOnSameGpu();
  const bool mayShare = settings().ncclVersion >= kFirstThatShares &&
                        variable("NCCL_MULTI_RANK_GPU_ENABLE") == "1";
  if (other < 0 || mayShare)
    return kNcclSuccess;
  return refuse(symbol, kNcclInvalidUsage,
                fmt::format("Duplicate GPU detected : rank {} and rank {} both "
                            "on CUDA device {}",
                            communicator.rank, other, communicator.device));
}

/// Returns a new communicator, still in creation, for a rank of a group. On an
/// error, returns null and sets `result`.
static Communicator join(const char *symbol, const ncclUniqueId &id, int rank,
                         int size, int device, ncclResult_t &result) {
  auto communicator = std::make_shared<ncclComm>();
  communicator->exchange = Exchange::open(id, rank, size);
  if (!communicator->exchange) {
    result = refuse(symbol, kNcclSystemError, "the id's owner is not there");
    return nullptr;
  }
  communicator->rank = rank;
  communicator->size = size;
  communicator->device = device;
  const std::string wrong = communicator->exchange->join(device, hostId());
  if (!wrong.empty()) {
    result = refuse(symbol, kNcclInvalidUsage, wrong);
    return nullptr;
  }
  live()[communicator.get()] = communicator;
  result = begin(*communicator, [symbol, c = communicator.get()] {
    return checkGroup(symbol, *c);
  });
  return communicator;
}

static std::string checkConfig(const ncclConfig_t *config) {
  if (!config || config->magic != kMagic ||
      config->size < sizeof(ncclConfig_t) || config->version < kFirstVersion)
    return "the configuration was not initialised";
  return config->blocking == 0 ? "" : "only communicators that do not block";
}

/// Returns whether no collective and no graph uses the communicator.
static bool isFree(ncclComm_t handle) {
  const auto found = live().find(handle);
  return found == live().end() || found->second.use_count() == 1;
}

} // namespace platform

using namespace platform;

ncclResult_t ncclGetVersion(int *version) {
  Call call("ncclGetVersion", Call::kNothing);
  if (call.refused())
    return call.refused();
  *version = settings().ncclVersion;
  return kNcclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  Call call("ncclGetUniqueId", Call::kNothing);
  if (call.refused())
    return call.refused();
  return Exchange::create(*id) ? ncclResult_t(kNcclSuccess)
                               : refuse("ncclGetUniqueId", kNcclSystemError,
                                        "no memory to share");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *handle, int size,
                                    ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
  constexpr const char *kSymbol = "ncclCommInitRankConfig";
  Call call(kSymbol, Call::kNothing);
  *handle = nullptr;
  if (call.refused())
    return call.refused();
  if (const std::string wrong = checkConfig(config); !wrong.empty())
    return refuse(kSymbol, kNcclInvalidArgument, wrong);
  if (size < 1 || size > Exchange::kMostRanks || rank < 0 || rank >= size)
    return refuse(kSymbol, kNcclInvalidArgument,
                  fmt::format("rank {} of {}", rank, size));
  if (currentDevice() < 0 || spoilCaptures())
    return refuse(kSymbol, kNcclUnhandledCudaError,
                  "no context is current, or a stream is captured");
  ncclResult_t result = kNcclSuccess;
  *handle = join(kSymbol, id, rank, size, currentDevice(), result).get();
  return result;
}

/// Returns why this rank cannot split a communicator now; empty if it can.
static std::string checkSplit(const ncclComm &group, int color, int key,
                              const ncclConfig_t *config) {
  if (const std::string wrong = checkConfig(config); !wrong.empty())
    return wrong;
  if (color < 0 || key < 0)
    return fmt::format("color {} and key {}", color, key);
  if (group.isFinalized)
    return "it was finalised";
  if (currentDevice() != group.device || spoilCaptures())
    return "another GPU is current, or a stream is captured";
  return group.running ? "a collective of it is under way" : "";
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key,
                           ncclComm_t *part, ncclConfig_t *config) {
  constexpr const char *kSymbol = "ncclCommSplit";
  Call call(kSymbol, Call::kNothing);
  *part = nullptr;
  if (call.refused())
    return call.refused();
  ncclResult_t result = kNcclSuccess;
  const Communicator group = usable(kSymbol, handle, result);
  if (!group)
    return result;
  if (const std::string wrong = checkSplit(*group, color, key, config);
      !wrong.empty())
    return refuse(kSymbol, kNcclInvalidArgument, wrong);
  Exchange::Split own = {color, key, {}};
  if (!Exchange::create(own.id) || !group->exchange->offer(own))
    return refuse(kSymbol, kNcclSystemError,
                  "no memory to share, or the split before is under way");
  begin(*group, [group = group.get(), part]() -> ncclResult_t {
    if (!group->exchange->haveAllOffered())
      return kNcclInProgress;
    const Exchange::Part found = group->exchange->partOf();
    ncclResult_t result = kNcclSuccess;
    *part =
        join(kSymbol, found.id, found.rank, found.size, group->device, result)
            .get();
    return *part ? int(kNcclSuccess) : result;
  });
  return kNcclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *error) {
  Call call("ncclCommGetAsyncError", Call::kNothing);
  if (call.refused())
    return call.refused();
  const auto found = live().find(handle);
  if (found == live().end())
    return refuse("ncclCommGetAsyncError", kNcclInvalidArgument,
                  "no live communicator");
  ncclComm &communicator = *found->second;
  ncclResult_t state = kNcclSuccess;
  if (communicator.inProgress) {
    state = --communicator.questions < 0 ? communicator.inProgress()
                                         : kNcclInProgress;
    if (state != kNcclInProgress)
      communicator.inProgress = nullptr;
  }
  if (state && state != kNcclInProgress)
    communicator.error = state;
  *error = communicator.error ? communicator.error : state;
  return kNcclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  constexpr const char *kSymbol = "ncclCommFinalize";
  Call call(kSymbol, Call::kNothing);
  if (call.refused())
    return call.refused();
  ncclResult_t result = kNcclSuccess;
  const Communicator communicator = usable(kSymbol, handle, result);
  if (!communicator)
    return result;
  if (communicator->isFinalized)
    return refuse(kSymbol, kNcclInvalidUsage, "it was finalised");
  communicator->isFinalized = true;
  return begin(*communicator, [handle]() -> ncclResult_t {
    if (!isFree(handle))
      return kNcclInProgress;
    handle->exchange->finish();
    return handle->exchange->haveAllFinished() ? int(kNcclSuccess)
                                               : kNcclInProgress;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  constexpr const char *kSymbol = "ncclCommDestroy";
  Call call(kSymbol, Call::kNothing);
  if (call.refused())
    return call.refused();
  ncclResult_t result = kNcclSuccess;
  const Communicator communicator = usable(kSymbol, handle, result);
  if (!communicator)
    return result;
  if (!communicator->isFinalized)
    return refuse(kSymbol, kNcclInvalidUsage, "it was not finalised");
  live().erase(handle);
  return kNcclSuccess;
}

/// Waits without holding the platform's mutex, so that work in progress can
/// finish.
ncclResult_t ncclCommAbort(ncclComm_t handle) {
  for (bool isFirst = true;; isFirst = false) {
    {
      std::unique_lock lock(platformMutex());
      if (isFirst) {
        Call call("ncclCommAbort", Call::kNothing);
        if (call.refused())
          return call.refused();
        if (!live().count(handle))
          return refuse("ncclCommAbort", kNcclInvalidArgument,
                        "no live communicator");
        handle->isAborted = true;
        handle->inProgress = nullptr;
      }
      if (isFree(handle)) {
        live().erase(handle);
        return kNcclSuccess;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

const char *ncclGetLastError(ncclComm_t) { return lastError().c_str(); }

const char *ncclGetErrorString(ncclResult_t result) {
  return result == kNcclSuccess ? "no error" : "an error of the platform";
}

} // namespace qlora
