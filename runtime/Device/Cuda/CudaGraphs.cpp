// SPDX-License-Identifier: MIT

// Capture, instantiation, launch.

#include "runtime/Device/Cuda/CudaGraphs.h"

namespace qlora {

void CudaGraphs::create(const CudaDriver &theDriver, CUstream theStream,
                        size_t count) {
  driver = &theDriver;
  stream = theStream;
  graphs.resize(count);
}

GraphMode CudaGraphs::modeOf(size_t graph) const {
  if (graphs[graph].executable)
    return GraphMode::kReplay;
  return graphs[graph].hasRun ? GraphMode::kCapture : GraphMode::kDirect;
}

Status CudaGraphs::launch(size_t graph) {
  return driver->check(
      driver->graphLaunch(graphs[graph].executable.get(), stream),
      "cuGraphLaunch");
}

Status CudaGraphs::beginCapture() {
  return driver->check(
      driver->streamBeginCapture(stream, kCudaCaptureThreadLocal),
      "cuStreamBeginCapture");
}

Status CudaGraphs::endCapture(size_t graph) {
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

void CudaGraphs::abandonCapture() {
  CUgraph captured = nullptr;
  // Its error is that of the command that spoiled the capture.
  (void)driver->streamEndCapture(stream, &captured);
  const CudaGraph dropped(*driver, captured);
}

} // namespace qlora
