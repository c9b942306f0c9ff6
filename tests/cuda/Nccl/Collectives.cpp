// SPDX-License-Identifier: MIT

// Collectives of the ranks, and sends between two ranks. A call takes effect
// when the caller polls it (ncclCommGetAsyncError): only then is the work
// enqueued on its stream or added to its capture. A captured collective first
// waits until all ranks capture it. When the stream reaches the work, the
// rank's operands are published to other ranks. The work runs when all ranks
// have published, and fails if their operands belong to another call
// (Exchange.h).

#include "tests/cuda/Driver/Api.h"
#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Settings.h"
#include "tests/cuda/Nccl/Communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace qlora {
namespace platform {

namespace {
/// One collective call; a graph may run it many times.
struct Collective {
  Communicator communicator;
  const char *symbol;
  Operands operands;
  void *to;
  size_t toBytes;
  CollectiveCall call;

  bool mayRun() const;
  int run() const;
  std::string checkRanges() const;
};

/// The sends and receives of one ncclGroupStart/End. They run concurrently.
struct Letters {
  /// One ncclSend or ncclRecv.
  struct Letter {
    int peer;
    uint8_t *data;
    size_t bytes;
    bool isSend;
    mutable bool isDone = false; ///< in the current run
  };
  Communicator communicator;
  CUstream stream = nullptr;
  std::vector<Letter> letters;
  std::string wrong; ///< error in the arguments of a send or receive

  bool mayRun() const;
  int run() const;
};
} // namespace

static constexpr int kIllegalAddressCode = 700, kLaunchFailedCode = 719;

static size_t bytesOf(int type) {
  switch (type) {
  case kNcclFloat32:
  case kNcclInt32:
    return 4;
  case kNcclBfloat16:
  case kNcclFloat16:
    return 2;
  case kNcclInt8:
  case kNcclUint8:
    return 1;
  default:
    return 0;
  }
}

std::string Collective::checkRanges() const {
  std::string wrong =
      checkDeviceRange(operands.from, operands.bytes, communicator->device);
  return wrong.empty() ? checkDeviceRange(to, toBytes, communicator->device)
                       : wrong;
}

bool Collective::mayRun() const {
  ncclComm &group = *communicator;
  if (group.isAborted)
    return true;
  const uint64_t number = group.done;
  if (number + 1 == settings().hangingCollective)
    return false;
  if (group.running && group.running != this)
    return false;
  if (!group.running) {
    if (!checkRanges().empty())
      return true; // run() reports it
    if (!group.exchange->publish(number, call, operands))
      return false;
    group.running = this;
  }
  return group.exchange->haveAllPublished(number);
}

int Collective::run() const {
  ncclComm &group = *communicator;
  if (group.isAborted)
    return 0;
  group.running = nullptr;
  const uint64_t number = group.done++;
  const std::string badRange = checkRanges();
  const std::string wrong =
      badRange.empty() ? group.exchange->objectionTo(number) : badRange;
  if (!wrong.empty()) {
    explain(fmt::format("{} runs: {}", symbol, wrong));
    return badRange.empty() ? kLaunchFailedCode : kIllegalAddressCode;
  }
  group.exchange->finish(number, operands, to);
  if (group.done == settings().failingCollective)
    group.error = refuse(symbol, settings().asyncError,
                         "made to fail after it has run");
  return 0;
}

bool Letters::mayRun() const {
  Exchange &exchange = *communicator->exchange;
  bool isEachDone = true;
  for (const Letter &letter : letters) {
    if (!letter.isDone && letter.isSend)
      letter.isDone = exchange.send(letter.peer, letter.data, letter.bytes);
    else if (!letter.isDone &&
             exchange.hasSent(letter.peer, letter.bytes) > 0) {
      exchange.receive(letter.peer, letter.data);
      letter.isDone = true;
    } else if (!letter.isDone &&
               exchange.hasSent(letter.peer, letter.bytes) < 0)
      return true; // run() reports it
    isEachDone &= letter.isDone;
  }
  return isEachDone || communicator->isAborted;
}

int Letters::run() const {
  for (const Letter &letter : letters) {
    if (!letter.isDone && !communicator->isAborted) {
      explain(fmt::format("ncclRecv runs: rank {} sends another size than {}",
                          letter.peer, letter.bytes));
      return kLaunchFailedCode;
    }
    letter.isDone = false;
  }
  return 0;
}

/// Waits until all ranks capture this call. Returns success, in progress, or an
/// error.
static ncclResult_t meet(const Collective &collective) {
  const ncclComm &group = *collective.communicator;
  const bool isIdle = !goOn();
  const std::string wrong =
      group.exchange->objectionToCapture(collective.call, group.done, isIdle);
  if (!wrong.empty())
    return refuse(collective.symbol, kNcclInvalidUsage, wrong);
  return group.exchange->haveAllEntered(collective.call.number)
             ? int(kNcclSuccess)
             : kNcclInProgress;
}

static std::string checkArguments(const Collective &collective, int operation) {
  const Operands &operands = collective.operands;
  const size_t element = bytesOf(operands.type);
  if (element == 0 || operation != kNcclSum ||
      (operands.isSum() && (element == 1 || operands.type == kNcclFloat16)))
    return fmt::format("type {} and operation {}: only sums of float32, "
                       "bfloat16 and int32",
                       operands.type, operation);
  const size_t most = std::max(operands.bytes, collective.toBytes);
  if (most == 0 || most > Exchange::kMostBytes)
    return fmt::format("{} bytes, of 1 to {}", most, Exchange::kMostBytes);
  const auto *a = static_cast<const uint8_t *>(operands.from);
  const auto *b = static_cast<const uint8_t *>(collective.to);
  if (reinterpret_cast<uintptr_t>(a) % element ||
      reinterpret_cast<uintptr_t>(b) % element)
    return fmt::format("{} or {} is not aligned", operands.from, collective.to);
  // An operation may be in place, as in NCCL: the smaller buffer is this rank's
  // shard of the larger buffer.
  const auto rank = static_cast<size_t>(collective.communicator->rank);
  const bool isInPlace =
      collective.toBytes > operands.bytes ? a == b + rank * operands.bytes
      : collective.toBytes < operands.bytes ? b == a + rank * collective.toBytes
                                            : a == b;
  if (!isInPlace && a < b + collective.toBytes && b < a + operands.bytes)
    return "the operands overlap";
  return collective.checkRanges();
}

/// Returns the communicator if a call on its GPU is allowed now, otherwise
/// null.
static Communicator callable(const char *symbol, ncclComm_t handle,
                             ncclResult_t &result) {
  const Communicator communicator = usable(symbol, handle, result);
  if (!communicator)
    return nullptr;
  if (communicator->isFinalized)
    result = refuse(symbol, kNcclInvalidUsage, "it was finalised");
  else if (currentDevice() != communicator->device)
    result = refuse(symbol, kNcclInvalidUsage, "another GPU is current");
  return result ? nullptr : communicator;
}

template <typename Work>
static ncclResult_t enqueue(CUstream stream, const char *symbol,
                            const std::shared_ptr<Work> &work) {
  const int code = enqueueLibraryWork(
      stream, symbol, [work] { return work->run(); },
      [work] { return work->mayRun(); });
  return code == 0 ? int(kNcclSuccess)
                   : refuse(symbol, kNcclUnhandledCudaError,
                            fmt::format("the stream gives {}", code));
}

static ncclResult_t start(const char *symbol, Operands operands, void *to,
                          size_t count, int operation, ncclComm_t handle,
                          CUstream stream) {
  Call call(symbol, Call::kNothing);
  if (call.refused())
    return call.refused();
  ncclResult_t result = kNcclSuccess;
  const Communicator communicator = callable(symbol, handle, result);
  if (!communicator)
    return result;
  const auto size = static_cast<size_t>(communicator->size);
  operands.bytes = count * bytesOf(operands.type);
  size_t toBytes = operands.bytes;
  if (operands.kind == Operands::kAllGather)
    toBytes *= size;
  else if (operands.kind == Operands::kReduceScatter)
    operands.bytes *= size;
  const Collective collective = {communicator, symbol,  operands, to,
                                 toBytes,      {}};
  const std::string wrong = checkArguments(collective, operation);
  if (!wrong.empty())
    return refuse(symbol, kNcclInvalidArgument, wrong);
  const auto made = std::make_shared<Collective>(collective);
  made->call = {communicator->calls++, isCapturing(stream)};
  communicator->exchange->enter(made->call);
  return begin(*communicator, [=]() -> ncclResult_t {
    if (made->call.isCaptured)
      if (const ncclResult_t state = meet(*made); state != kNcclSuccess)
        return state;
    return enqueue(stream, symbol, made);
  });
}

/// Nesting depth of the open group.
static int &groupDepth() {
  static int depth = 0;
  return depth;
}
static std::shared_ptr<Letters> &openLetters() {
  static std::shared_ptr<Letters> letters;
  return letters;
}

static ncclResult_t sendLetters(const char *symbol) {
  const std::shared_ptr<Letters> letters = std::move(openLetters());
  if (!letters)
    return kNcclSuccess;
  if (!letters->wrong.empty())
    return refuse(symbol, kNcclInvalidArgument, letters->wrong);
  return begin(*letters->communicator, [=]() -> ncclResult_t {
    return enqueue(letters->stream, symbol, letters);
  });
}

static ncclResult_t addLetter(const char *symbol, bool isSend, void *data,
                              size_t count, int type, int peer,
                              ncclComm_t handle, CUstream stream) {
  Call call(symbol, Call::kNothing);
  if (call.refused())
    return call.refused();
  ncclResult_t result = kNcclSuccess;
  const Communicator communicator = callable(symbol, handle, result);
  if (!communicator)
    return result;
  if (!openLetters())
    openLetters() = std::make_shared<Letters>(
        Letters{communicator, stream, {}, ""});
  Letters &letters = *openLetters();
  const size_t bytes = count * bytesOf(type);
  if (letters.communicator != communicator || letters.stream != stream)
    letters.wrong = "two communicators or streams in a group";
  else if (peer < 0 || peer >= communicator->size || bytes == 0 ||
           bytes > Exchange::kMostSent)
    letters.wrong = fmt::format("{} bytes of type {} and rank {}", bytes, type,
                                peer);
  else if (const std::string wrong =
               checkDeviceRange(data, bytes, communicator->device);
           !wrong.empty())
    letters.wrong = wrong;
  letters.letters.push_back(
      {peer, static_cast<uint8_t *>(data), bytes, isSend});
  return groupDepth() > 0 ? int(kNcclSuccess) : sendLetters(symbol);
}

} // namespace platform

using namespace platform;

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, int type,
                           int operation, ncclComm_t handle, CUstream stream) {
  return start("ncclAllReduce", {Operands::kAllReduce, type, 0, 0, from}, to,
               count, operation, handle, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, int type,
                           ncclComm_t handle, CUstream stream) {
  return start("ncclAllGather", {Operands::kAllGather, type, 0, 0, from}, to,
               count, kNcclSum, handle, stream);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count,
                               int type, int operation, ncclComm_t handle,
                               CUstream stream) {
  return start("ncclReduceScatter",
               {Operands::kReduceScatter, type, 0, 0, from}, to, count,
               operation, handle, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, int type,
                           int root, ncclComm_t handle, CUstream stream) {
  return start("ncclBroadcast", {Operands::kBroadcast, type, root, 0, from}, to,
               count, kNcclSum, handle, stream);
}

ncclResult_t ncclSend(const void *from, size_t count, int type, int peer,
                      ncclComm_t handle, CUstream stream) {
  return addLetter("ncclSend", true, const_cast<void *>(from), count, type,
                   peer, handle, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, int type, int peer,
                      ncclComm_t handle, CUstream stream) {
  return addLetter("ncclRecv", false, to, count, type, peer, handle, stream);
}

ncclResult_t ncclGroupStart() {
  Call call("ncclGroupStart", Call::kNothing);
  if (call.refused())
    return call.refused();
  ++groupDepth();
  return kNcclSuccess;
}

ncclResult_t ncclGroupEnd() {
  Call call("ncclGroupEnd", Call::kNothing);
  if (call.refused())
    return call.refused();
  if (groupDepth() == 0)
    return refuse("ncclGroupEnd", kNcclInvalidUsage, "no group is open");
  return --groupDepth() > 0 ? int(kNcclSuccess) : sendLetters("ncclGroupEnd");
}

} // namespace qlora
