// SPDX-License-Identifier: MIT

// Captures, instantiates and launches graphs.

#include "runtime/Device/Cuda/CudaGraphs.h"

namespace qlora {

void CudaGraphs::create(const CudaDriver &theDriver, CUstream theStream,
                        size_t count) {
  driver = &theDriver;
  stream = theStream;
  graphs.resize(count);
}

Status CudaGraphs::begin(size_t graph, bool isDirect) {
  current = graph;
  mode = Mode::kDirect;
  if (isDirect)
    return Status::ok();
  if (graphs[graph].executable) {
    mode = Mode::kReplay;
    return launch(graph);
  }
  if (!graphs[graph].hasRun)
    return Status::ok();
  return orAbandon(beginCapture());
}

Status CudaGraphs::orAbandon(const Status &status) {
  if (!status.isOk())
    abandon();
  return status;
}

Status CudaGraphs::end(bool counts) {
  if (mode == Mode::kDirect) {
    graphs[current].hasRun |= counts;
    return Status::ok();
  }
  QLORA_RETURN_IF_ERROR(endCapture(current));
  return launch(current);
}

Status CudaGraphs::launch(size_t graph) {
  return driver->check(
      driver->graphLaunch(graphs[graph].executable.get(), stream),
      "cuGraphLaunch");
}

Status CudaGraphs::beginCapture() {
  mode = Mode::kCapture;
  return driver->check(
      driver->streamBeginCapture(stream, kCudaCaptureThreadLocal),
      "cuStreamBeginCapture");
}

Status CudaGraphs::endCapture(size_t graph) {
  mode = Mode::kDirect;
  CUgraph captured = nullptr;
  QLORA_RETURN_IF_ERROR(driver->check(
      driver->streamEndCapture(stream, &captured), "cuStreamEndCapture"));
  const CudaGraph recorded(*driver, captured);
  CUgraphExec executable = nullptr;
  QLORA_RETURN_IF_ERROR(
      driver->check(driver->graphInstantiate(&executable, recorded.get(), 0),
                    "cuGraphInstantiate"));
  graphs[graph].executable = CudaGraphExec(*driver, executable);
  return Status::ok();
}

void CudaGraphs::abandon() {
  if (mode != Mode::kCapture)
    return;
  CUgraph captured = nullptr;
  // Ignore the result: the command that broke the capture returned an error.
  (void)driver->streamEndCapture(stream, &captured);
  const CudaGraph dropped(*driver, captured);
}

} // namespace qlora
