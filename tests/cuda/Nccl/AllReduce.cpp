// SPDX-License-Identifier: MIT

// Sums of float32 over the ranks. A call takes effect when the caller has
// asked for it (ncclCommGetAsyncError): only then is the work on its stream, or
// in its capture, for which the ranks meet. When the stream comes to it, the
// rank's operands go to the others; it runs when those of all are there, and is
// an error where theirs are not of the same call (Exchange.h).

#include "tests/cuda/Driver/Api.h"
#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Settings.h"
#include "tests/cuda/Nccl/Communicator.h"

#include <fmt/format.h>

namespace qlora {
namespace platform {

namespace {
/// One call; a graph runs it many times.
struct Sum {
  Communicator communicator;
  const float *from;
  float *to;
  size_t count;
  CollectiveCall call;

  bool mayRun() const;
  int run() const;
};
} // namespace

static constexpr int kIllegalAddressCode = 700;
static constexpr int kLaunchFailedCode = 719;

static std::string checkRange(const void *data, size_t count, int device) {
  if (reinterpret_cast<uintptr_t>(data) % alignof(float))
    return fmt::format("{} is not aligned", data);
  return checkDeviceRange(data, count * sizeof(float), device);
}

bool Sum::mayRun() const {
  ncclComm &group = *communicator;
  if (group.isAborted)
    return true;
  const uint64_t number = group.done;
  if (number + 1 == settings().hangingCollective)
    return false;
  if (group.running && group.running != this)
    return false;
  if (!group.running) {
    if (!checkRange(from, count, group.device).empty())
      return true; // run() says it
    if (!group.exchange->publish(number, call, from, count))
      return false;
    group.running = this;
  }
  return group.exchange->haveAllPublished(number);
}

int Sum::run() const {
  ncclComm &group = *communicator;
  if (group.isAborted)
    return 0;
  group.running = nullptr;
  const uint64_t number = group.done++;
  for (const float *data : {from, static_cast<const float *>(to)})
    if (const std::string wrong = checkRange(data, count, group.device);
        !wrong.empty()) {
      explain("ncclAllReduce runs: " + wrong);
      return kIllegalAddressCode;
    }
  if (const std::string wrong = group.exchange->objectionToSum(number);
      !wrong.empty()) {
    explain("ncclAllReduce runs: " + wrong);
    return kLaunchFailedCode;
  }
  group.exchange->sum(number, to, count);
  if (group.done == settings().failingCollective)
    group.error = refuse("ncclAllReduce", settings().asyncError,
                         "made to fail after it has run");
  return 0;
}

/// Whether all ranks capture this call now: done, in progress or an error.
static ncclResult_t meet(const Sum &sum) {
  const ncclComm &group = *sum.communicator;
  const bool isIdle = !goOn();
  const std::string wrong =
      group.exchange->objectionToCapture(sum.call, group.done, isIdle);
  if (!wrong.empty())
    return refuse("ncclAllReduce", kNcclInvalidUsage, wrong);
  return group.exchange->haveAllEntered(sum.call.number) ? int(kNcclSuccess)
                                                         : kNcclInProgress;
}

static std::string checkArguments(const void *from, const void *to,
                                  size_t count, int type, int operation,
                                  int device) {
  if (type != kNcclFloat32 || operation != kNcclSum)
    return fmt::format("type {} and operation {}: only sums of float32", type,
                       operation);
  if (count == 0 || count > Exchange::kMostFloats)
    return fmt::format("{} values, of 1 to {}", count, Exchange::kMostFloats);
  std::string wrong = checkRange(from, count, device);
  if (wrong.empty())
    wrong = checkRange(to, count, device);
  const auto *a = static_cast<const float *>(from);
  const auto *b = static_cast<const float *>(to);
  if (wrong.empty() && a != b && a < b + count && b < a + count)
    return "the operands overlap";
  return wrong;
}

} // namespace platform

using namespace platform;

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, int type,
                           int operation, ncclComm_t handle, CUstream stream) {
  constexpr const char *kSymbol = "ncclAllReduce";
  Call call(kSymbol, Call::kNothing);
  if (call.refused())
    return call.refused();
  ncclResult_t result = kNcclSuccess;
  const Communicator communicator = usable(kSymbol, handle, result);
  if (!communicator)
    return result;
  if (communicator->isFinalized)
    return refuse(kSymbol, kNcclInvalidUsage, "it was finalised");
  if (currentDevice() != communicator->device)
    return refuse(kSymbol, kNcclInvalidUsage, "another card is current");
  const std::string wrong = checkArguments(from, to, count, type, operation,
                                           communicator->device);
  if (!wrong.empty())
    return refuse(kSymbol, kNcclInvalidArgument, wrong);
  const CollectiveCall own{communicator->calls++, isCapturing(stream)};
  communicator->exchange->enter(own);
  const auto sum = std::make_shared<const Sum>(
      Sum{communicator, static_cast<const float *>(from),
          static_cast<float *>(to), count, own});
  return begin(*communicator, [=]() -> ncclResult_t {
    if (own.isCaptured)
      if (const ncclResult_t state = meet(*sum); state != kNcclSuccess)
        return state;
    const int code = enqueueLibraryWork(
        stream, kSymbol, [sum] { return sum->run(); },
        [sum] { return sum->mayRun(); });
    return code == 0 ? int(kNcclSuccess)
                     : refuse(kSymbol, kNcclUnhandledCudaError,
                              fmt::format("the stream gives {}", code));
  });
}

} // namespace qlora
