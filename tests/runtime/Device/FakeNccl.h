// SPDX-License-Identifier: MIT

// A table of NCCL functions without NCCL, for tests of our logic. The
// all-reduce of the world communicator doubles its operand. A split creates a
// second communicator, whose handle appears some queries later. Every call
// completes after a few queries. Any call can fail, also in a FaultSweep, or
// stay in progress forever. tests/cuda/ tests collectives between ranks.

#ifndef QLORA_TESTS_RUNTIME_DEVICE_FAKENCCL_H
#define QLORA_TESTS_RUNTIME_DEVICE_FAKENCCL_H

#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/Device/Collectives.h"
#include "runtime/Device/Cuda/NcclApi.h"
#include "tests/runtime/Device/FakeCudaDriver.h"

namespace qlora::fake {

struct Group {
  std::map<std::string, int, std::less<>> calls; ///< number, by member of Nccl
  std::string failing;          ///< member whose calls fail with `error`
  ncclResult_t error = 2;
  std::string hanging;          ///< member whose calls never complete
  ncclResult_t asyncError = 0;  ///< returned if no call is in progress
  int mostQuestions = 2;        ///< queries until a new call completes
  int questions = 0;            ///< queries until the call completes
  bool isHanging = false;
  std::atomic<bool> isAborted = false;
  std::atomic<int> aborts = 0, partAborts = 0;
  std::atomic<bool> isAbortHeld = false; ///< whether commAbort blocks
  std::vector<std::string> said; ///< splits, and collectives except allReduce
  std::vector<const void *> places; ///< operands of send and recv
  std::vector<ncclComm_t> used;     ///< by allReduce, allGather, commDestroy
  ncclComm_t *splitOff = nullptr;   ///< receives the handle of a split
  int beforeHandle = 0;      ///< queries until the handle appears; < 0: never
  bool isHandleLost = false; ///< the next split's handle never appears
  bool isGrouped = false;
  ncclResult_t errorInGroup = 0; ///< groupEnd() returns it
  ncclConfig_t config;
};
/// State of the communicators in the running test.
inline Group group;

inline ncclComm_t communicator() {
  static char one;
  return reinterpret_cast<ncclComm_t>(&one);
}
inline ncclComm_t part() {
  static char other;
  return reinterpret_cast<ncclComm_t>(&other);
}

inline ncclResult_t start(const char *member) {
  ++group.calls[member];
  if (group.failing == member)
    return group.error;
  group.questions = group.mostQuestions;
  group.isHanging = group.hanging == member;
  return kNcclInProgress;
}

inline ncclResult_t getVersion(int *version) {
  *version = 22809;
  return 0;
}
inline ncclResult_t getUniqueId(ncclUniqueId *id) {
  for (size_t i = 0; i < sizeof id->internal; ++i)
    id->internal[i] = static_cast<char>(i * 2 + 1);
  ++group.calls["getUniqueId"];
  return group.failing == "getUniqueId" ? group.error : 0;
}
/// Checks the id only on rank 0, because rank 0 created it.
inline ncclResult_t commInitRankConfig(ncclComm_t *comm, int, ncclUniqueId id,
                                       int rank, ncclConfig_t *config) {
  if (rank == 0 && static_cast<uint8_t>(id.internal[100]) != 201)
    return 4;
  group.config = *config;
  *comm = communicator();
  return start("commInitRankConfig");
}
inline ncclResult_t commGetAsyncError(ncclComm_t of, ncclResult_t *state) {
  ++group.calls["commGetAsyncError"];
  if (!of)
    return kNcclInvalidArgument;
  if (group.failing == "commGetAsyncError")
    return group.error;
  const bool isBusy = group.isHanging || group.questions > 0;
  group.questions -= group.questions > 0;
  *state = isBusy ? kNcclInProgress : group.asyncError;
  if (!isBusy && group.splitOff && group.beforeHandle-- == 0) {
    *std::exchange(group.splitOff, nullptr) = part();
    group.questions = group.mostQuestions;
  }
  return 0;
}
inline ncclResult_t commSplit(ncclComm_t, int color, int key, ncclComm_t *to,
                              ncclConfig_t *config) {
  group.said.push_back(fmt::format("split {} {}", color, key));
  group.config = *config;
  group.splitOff = to;
  group.beforeHandle = group.isHandleLost ? -1 : group.mostQuestions;
  const ncclResult_t result = start("commSplit");
  return result == kNcclInProgress ? 0 : result; // the call has started
}
inline ncclResult_t allReduce(const void *from, void *to, size_t count, int,
                              int, ncclComm_t on, CUstream) {
  group.used.push_back(on);
  if (const ncclResult_t result = start("allReduce"); result != kNcclInProgress)
    return result;
  run([=] {
    for (size_t i = 0; i < count; ++i)
      static_cast<float *>(to)[i] = 2 * static_cast<const float *>(from)[i];
  });
  return kNcclInProgress;
}
/// Records a call of any collective except all-reduce. The call does nothing.
inline ncclResult_t say(const char *member, size_t count, int type, int where) {
  group.said.push_back(
      fmt::format("{} {} of {} ({})", member, count, type, where));
  return group.isGrouped ? 0 : start(member);
}
inline ncclResult_t allGather(const void *, void *, size_t count, int type,
                              ncclComm_t on, CUstream) {
  group.used.push_back(on);
  return say("allGather", count, type, 0);
}
inline ncclResult_t reduceScatter(const void *, void *, size_t count, int type,
                                  int operation, ncclComm_t, CUstream) {
  return say("reduceScatter", count, type, operation);
}
inline ncclResult_t broadcast(const void *, void *, size_t count, int type,
                              int root, ncclComm_t, CUstream) {
  return say("broadcast", count, type, root);
}
inline ncclResult_t send(const void *from, size_t count, int type, int peer,
                         ncclComm_t, CUstream) {
  group.places.push_back(from);
  return say("send", count, type, peer);
}
inline ncclResult_t recv(void *to, size_t count, int type, int peer,
                         ncclComm_t, CUstream) {
  group.places.push_back(to);
  return say("recv", count, type, peer);
}
inline ncclResult_t groupStart() {
  group.isGrouped = true;
  return 0;
}
inline ncclResult_t groupEnd() {
  group.isGrouped = false;
  return group.errorInGroup ? std::exchange(group.errorInGroup, 0)
                            : start("groupEnd");
}
inline ncclResult_t commFinalize(ncclComm_t) { return start("commFinalize"); }
inline ncclResult_t commDestroy(ncclComm_t ended) {
  group.used.push_back(ended);
  ++group.calls["commDestroy"];
  return group.failing == "commDestroy" ? group.error : 0;
}
inline ncclResult_t commAbort(ncclComm_t aborted) {
  ++(aborted == part() ? group.partAborts : group.aborts);
  group.isAborted = true;
  group.isAborted.notify_all();
  group.isAbortHeld.wait(true);
  return 0;
}

template <typename Function> struct Failing;
template <typename... Args> struct Failing<ncclResult_t (*)(Args...)> {
  template <Name Symbol, ncclResult_t (*Function)(Args...)>
  static ncclResult_t call(Args... args) {
    const int error = faultAt(Symbol.text, kNccl, "");
    if (error != 0 && group.isGrouped)
      group.errorInGroup = error;
    return error ? error : Function(args...);
  }
};

/// Resets the state and returns the library.
inline const Nccl &newNccl() {
  static Nccl nccl;
  group.calls.clear();
  group.said.clear();
  group.places.clear();
  group.used.clear();
  group.splitOff = nullptr;
  group.isHandleLost = group.isGrouped = false;
  group.mostQuestions = 2;
  group.errorInGroup = 0;
  group.aborts = group.partAborts = 0;
  group.failing.clear();
  group.hanging.clear();
  group.error = 2;
  group.asyncError = group.questions = 0;
  group.isHanging = group.isAborted = group.isAbortHeld = false;
  nccl.getLastError = [](ncclComm_t) { return "as the test wants it\n"; };
  nccl.commSplit =
      Failing<decltype(Nccl::commSplit)>::call<"ncclCommSplit", commSplit>;
#define QLORA_NCCL(Member, Symbol, Parameters)                                 \
  nccl.Member = Failing<decltype(Nccl::Member)>::call<#Symbol, fake::Member>;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
  return nccl;
}

/// Host collectives of rank `own` of `count` ranks. The other ranks only repeat
/// this rank's bytes.
class TwoRanks final : public Collectives {
public:
  int rank() const override { return own; }
  int size() const override { return count; }
  Status run(const CollectiveCall &) override { return Status::ok(); }
  StatusOr<std::vector<std::string>> allGather(std::string_view mine) override {
    return std::vector<std::string>(size_t(count), std::string(mine));
  }
  Status checkOthers() override {
    return isAlone ? Status::error(StatusCode::kAborted, "rank 1 is gone")
                   : Status::ok();
  }
  std::chrono::milliseconds timeout() const override { return limit; }
  void abort() override {}

  int own = 0, count = 2;
  bool isAlone = false;
  std::chrono::milliseconds limit = std::chrono::minutes(1);
};

} // namespace qlora::fake

#endif // QLORA_TESTS_RUNTIME_DEVICE_FAKENCCL_H
