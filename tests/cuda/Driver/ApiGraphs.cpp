// SPDX-License-Identifier: MIT

// Captures and graphs. A node stores its work: arguments by value, memory by
// address. Each node of a launched graph is a separate operation. For each
// launch, the captured streams get random priorities, some of which change
// between nodes. So nodes run in any order that their dependencies allow.

#include "tests/cuda/Driver/Api.h"

#include "tests/cuda/Driver/Codes.h"
#include "tests/cuda/Driver/Objects.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

namespace qlora {
namespace platform {

bool spoilCaptures() {
  bool isAny = false;
  objects().streams.forEach([&](CUstream_st &stream) {
    if (!stream.capture)
      return;
    stream.capture->isInvalid = true;
    isAny = true;
  });
  return isAny;
}

/// Returns, for each node, whether it is in `last` or a node in `last` depends
/// on it.
static std::vector<bool> ancestors(const CUgraph_st &graph,
                                   const std::vector<size_t> &last) {
  std::vector<bool> isReached(graph.nodes.size());
  for (const size_t node : last)
    isReached[node] = true;
  for (size_t i = graph.nodes.size(); i > 0; --i)
    if (isReached[i - 1])
      for (const size_t dependency : graph.nodes[i - 1].dependencies)
        isReached[dependency] = true;
  return isReached;
}

} // namespace platform

using namespace platform;

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  Call call("cuStreamBeginCapture_v2");
  if (call.refused())
    return call.refused();
  if (!stream)
    return call.fail(kCaptureUnsupported, "the default stream is not captured");
  CUstream_st *const origin = streamOf(stream);
  if (!origin)
    return call.fail(kInvalidHandle, "no live stream of this context");
  if (mode < 0 || mode > 2)
    return call.fail(kInvalidValue, "unknown mode");
  if (origin->capture)
    return call.fail(kInvalidValue, "the stream captures already");
  if (!origin->waits.empty())
    return call.fail(kCaptureIsolation,
                     "the stream waits for an event from before the capture");
  origin->capture = std::make_shared<Capture>();
  origin->capture->origin = origin;
  origin->capture->streams = {origin};
  origin->captured.clear();
  return kSuccess;
}

/// Removes all streams from the capture. Returns each stream's last nodes.
static std::vector<std::vector<size_t>> endCapture(Capture &capture) {
  std::vector<std::vector<size_t>> last;
  for (CUstream_st *stream : capture.streams) {
    last.push_back(std::move(stream->captured));
    stream->captured.clear();
    stream->capture = nullptr;
  }
  capture.streams.clear();
  return last;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  Call call("cuStreamEndCapture");
  CUstream_st *const origin =
      stream && currentContext() ? streamOf(stream) : nullptr;
  const std::shared_ptr<Capture> capture = origin ? origin->capture : nullptr;
  if (call.refused()) {
    if (capture)
      endCapture(*capture); // also if the call fails
    return call.refused();
  }
  *graph = nullptr;
  if (!capture)
    return call.fail(kInvalidValue, "the stream captures nothing");
  if (capture->origin != origin)
    return call.fail(kCaptureUnmatched, "the capture began on another stream");
  const auto last = endCapture(*capture);
  if (capture->isInvalid)
    return call.fail(kCaptureInvalidated, "an earlier call spoilt the capture");
  const std::vector<bool> isJoined = ancestors(capture->graph, last[0]);
  for (const std::vector<size_t> &nodes : last)
    for (const size_t node : nodes)
      if (!isJoined[node])
        return call.fail(
            kCaptureUnjoined,
            fmt::format("{}: its stream did not join the origin again",
                        capture->graph.nodes[node].what));
  *graph = objects().graphs.add(
      std::make_unique<CUgraph_st>(std::move(capture->graph)));
  return kSuccess;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                     unsigned long long flags) {
  Call call("cuGraphInstantiateWithFlags");
  if (call.notWhileCapturing().refused())
    return call.refused();
  if (!objects().graphs.has(graph))
    return call.fail(kInvalidHandle, "no live graph");
  if (flags)
    return call.fail(kInvalidValue, "flags are not supported");
  auto created = std::make_unique<CUgraphExec_st>();
  created->nodes = graph->nodes;
  *exec = objects().graphExecs.add(std::move(created));
  return kSuccess;
}

/// Schedules one operation per node between the stream's last operation and its
/// next one.
static void scheduleGraph(CUgraphExec_st &exec, CUstream_st &stream) {
  const OperationRef begin = stream.last;
  std::map<const CUstream_st *, uint64_t> priorities;
  std::vector<OperationRef> operations;
  for (const GraphNode &node : exec.nodes) {
    std::vector<OperationRef> dependencies = {begin};
    for (const size_t dependency : node.dependencies)
      dependencies.push_back(operations[dependency]);
    auto [priority, isNew] = priorities.try_emplace(node.stream, 0);
    if (isNew || nextRandom() % 16 == 0)
      priority->second = nextRandom();
    operations.push_back(
        schedule(node.what, priority->second, dependencies, node.work,
                 node.mayRun));
  }
  operations.push_back(begin);
  exec.last = schedule("end of a graph", stream.priority, operations,
                       [] { return int(kSuccess); });
  stream.last = exec.last;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  Call call("cuGraphLaunch");
  if (call.refused())
    return call.refused();
  CUstream_st *const target = streamOf(stream);
  if (!target || !objects().graphExecs.has(exec))
    return call.fail(kInvalidHandle, "no live stream or graph");
  if (target->capture)
    return call.fail(kNotSupported, "a graph inside of a capture");
  target->waits.push_back(exec->last);
  const int code =
      enqueue(*target, "begin of a graph", [] { return int(kSuccess); });
  scheduleGraph(*exec, *target);
  runSome();
  return code;
}

CUresult cuGraphDestroy(CUgraph graph) {
  Call call("cuGraphDestroy");
  if (call.refused())
    return call.refused();
  return objects().graphs.remove(graph)
             ? kSuccess
             : call.fail(kInvalidHandle, "no live graph");
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  Call call("cuGraphExecDestroy");
  if (call.refused())
    return call.refused();
  if (!objects().graphExecs.has(exec))
    return call.fail(kInvalidHandle, "no live graph");
  runUntil(exec->last);
  objects().graphExecs.remove(exec);
  return kSuccess;
}

} // namespace qlora
