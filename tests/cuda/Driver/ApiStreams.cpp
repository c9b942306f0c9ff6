// SPDX-License-Identifier: MIT

// Streams and events, during captures (ApiGraphs.cpp) and otherwise.

#include "tests/cuda/Driver/Api.h"

#include "tests/cuda/Driver/Codes.h"
#include "tests/cuda/Driver/Objects.h"
#include "tests/cuda/Driver/Settings.h"

#include <algorithm>

namespace qlora {
namespace platform {

CUstream_st *streamOf(CUstream handle) {
  CUctx_st *context = currentContext();
  if (!handle)
    return context->defaultStream.get();
  const bool isOwn =
      objects().streams.has(handle) && handle->context == context;
  return isOwn ? handle : nullptr;
}

/// Adds the dependencies between the default stream and the blocking streams of
/// its context.
static void addDefaultStreamOrder(const CUstream_st &stream,
                                  std::vector<OperationRef> &dependencies) {
  CUstream_st *const ofDefault = stream.context->defaultStream.get();
  if (&stream != ofDefault) {
    if (stream.isBlocking)
      dependencies.push_back(ofDefault->last);
    return;
  }
  objects().streams.forEach([&](CUstream_st &other) {
    if (other.isBlocking && other.context == stream.context)
      dependencies.push_back(other.last);
  });
}

int enqueue(CUstream_st &stream, std::string what, Work work, MayRun mayRun) {
  if (stream.capture) {
    if (stream.capture->isInvalid)
      return kCaptureInvalidated;
    std::vector<GraphNode> &nodes = stream.capture->graph.nodes;
    nodes.push_back({std::move(what), std::move(work), stream.captured,
                     &stream, std::move(mayRun)});
    stream.captured = {nodes.size() - 1};
    return kSuccess;
  }
  std::vector<OperationRef> dependencies = std::move(stream.waits);
  stream.waits.clear();
  dependencies.push_back(stream.last);
  addDefaultStreamOrder(stream, dependencies);
  if (nextRandom() % 16 == 0)
    stream.priority = nextRandom();
  stream.last = schedule(std::move(what), stream.priority, dependencies,
                         std::move(work), std::move(mayRun));
  runSome();
  return kSuccess;
}

} // namespace platform

using namespace platform;

static constexpr const char *kNoStream = "no live stream of this context";
/// Maximum number of operations that run in one query of an event. A query runs
/// some, because a real GPU continues to work while its host polls.
static constexpr uint64_t kMostPerQuery = 64;

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  Call call("cuStreamCreate");
  if (call.refused())
    return call.refused();
  if (flags & ~kCudaStreamNonBlocking)
    return call.fail(kInvalidValue, "unknown flags");
  auto created = std::make_unique<CUstream_st>();
  created->context = currentContext();
  created->isBlocking = !(flags & kCudaStreamNonBlocking);
  created->priority = nextRandom();
  *stream = objects().streams.add(std::move(created));
  return kSuccess;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  Call call("cuStreamDestroy_v2");
  if (call.refused())
    return call.refused();
  if (!stream || !streamOf(stream))
    return call.fail(kInvalidHandle, kNoStream);
  if (stream->capture)
    return call.fail(kCaptureUnsupported, "the stream captures");
  objects().streams.remove(stream);
  return kSuccess;
}

/// Waits on the host for an operation. Waiting for the newest operation of a
/// stream leaves the GPU idle. It counts as a synchronisation, which a training
/// step must not contain.
static CUresult waitFor(const OperationRef &operation, bool isNewest) {
  countEvent("host waits");
  if (isNewest)
    countEvent("synchronisations");
  runUntil(operation);
  return stickyCode();
}

CUresult cuStreamSynchronize(CUstream stream) {
  Call call("cuStreamSynchronize");
  if (call.notWhileCapturing().refused())
    return call.refused();
  CUstream_st *const waited = streamOf(stream);
  if (!waited)
    return call.fail(kInvalidHandle, kNoStream);
  for (const OperationRef &operation : waited->waits)
    runUntil(operation);
  return waitFor(waited->last, true);
}

/// Makes the stream join the capture in which the event was recorded.
static CUresult joinCapture(Call &call, CUstream_st &stream,
                            const CUevent_st &event) {
  if (!stream.capture) {
    if (stream.last && !stream.last->isDone)
      explain("cuStreamWaitEvent: a stream joins a capture; the work that it "
              "has already is not part of it");
    stream.capture = event.capture;
    event.capture->streams.push_back(&stream);
  } else if (stream.capture != event.capture) {
    return call.fail(kCaptureIsolation, "the event is of another capture");
  }
  for (const size_t node : event.captured)
    if (std::find(stream.captured.begin(), stream.captured.end(), node) ==
        stream.captured.end())
      stream.captured.push_back(node);
  return kSuccess;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  Call call("cuStreamWaitEvent");
  if (call.refused())
    return call.refused();
  CUstream_st *const waiting = streamOf(stream);
  if (!waiting || !objects().events.has(event) || flags)
    return call.fail(kInvalidHandle, "no live stream or event");
  if (event->capture) {
    if (event->capture->isInvalid || event->capture->streams.empty())
      return call.fail(kCapturedEvent, "the capture of the event has ended");
    return joinCapture(call, *waiting, *event);
  }
  if (waiting->capture) {
    if (!event->recorded)
      return kSuccess;
    waiting->capture->isInvalid = true;
    return call.fail(kCaptureIsolation,
                     "the event was recorded outside of the capture");
  }
  waiting->waits.push_back(event->recorded);
  return kSuccess;
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
  Call call("cuEventCreate");
  if (call.refused())
    return call.refused();
  if (flags & ~(1u | kCudaEventDisableTiming))
    return call.fail(kInvalidValue, "unknown flags");
  auto created = std::make_unique<CUevent_st>();
  created->hasTiming = !(flags & kCudaEventDisableTiming);
  *event = objects().events.add(std::move(created));
  return kSuccess;
}

CUresult cuEventDestroy_v2(CUevent event) {
  Call call("cuEventDestroy_v2");
  if (call.refused())
    return call.refused();
  return objects().events.remove(event)
             ? kSuccess
             : call.fail(kInvalidHandle, "no live event");
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  Call call("cuEventRecord");
  if (call.refused())
    return call.refused();
  CUstream_st *const recording = streamOf(stream);
  if (!recording || !objects().events.has(event))
    return call.fail(kInvalidHandle, "no live stream or event");
  if (recording->capture) {
    event->capture = recording->capture;
    event->captured = recording->captured;
    event->recorded = nullptr;
    return kSuccess;
  }
  event->capture = nullptr;
  const int code = enqueue(*recording, "event", [] { return int(kSuccess); });
  event->recorded = recording->last;
  return code;
}

static bool isNewestOfItsStream(const CUevent_st &event) {
  bool isNewest = false;
  objects().streams.forEach([&](const CUstream_st &stream) {
    isNewest |= event.recorded && stream.last == event.recorded;
  });
  return isNewest;
}

CUresult cuEventSynchronize(CUevent event) {
  Call call("cuEventSynchronize");
  if (call.notWhileCapturing().refused())
    return call.refused();
  if (!objects().events.has(event))
    return call.fail(kInvalidHandle, "no live event");
  if (event->capture)
    return call.fail(kCapturedEvent, "the event is of a capture");
  return waitFor(event->recorded, isNewestOfItsStream(*event));
}

CUresult cuEventQuery(CUevent event) {
  Call call("cuEventQuery");
  if (call.notWhileCapturing().refused())
    return call.refused();
  if (!objects().events.has(event))
    return call.fail(kInvalidHandle, "no live event");
  if (event->capture)
    return call.fail(kCapturedEvent, "the event is of a capture");
  // Run some operations, so that a polling caller makes progress.
  const uint64_t most = 1 + nextRandom() % kMostPerQuery;
  for (uint64_t i = 0; i < most && runOne(); ++i) {
  }
  if (stickyCode())
    return stickyCode();
  const bool isDone = !event->recorded || event->recorded->isDone;
  return isDone ? kSuccess : kNotReady;
}

CUresult cuCtxSynchronize() {
  Call call("cuCtxSynchronize");
  if (call.notWhileCapturing().refused())
    return call.refused();
  countEvent("host waits");
  countEvent("synchronisations");
  runAll();
  return stickyCode();
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
  Call call("cuEventElapsedTime");
  if (call.refused())
    return call.refused();
  for (const CUevent event : {begin, end}) {
    if (!objects().events.has(event) || !event->recorded || !event->hasTiming)
      return call.fail(kInvalidHandle, "an event without a recorded time");
    if (!event->recorded->isDone)
      return kNotReady;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(
                      end->recorded->doneAt - begin->recorded->doneAt)
                      .count();
  return kSuccess;
}

} // namespace qlora
