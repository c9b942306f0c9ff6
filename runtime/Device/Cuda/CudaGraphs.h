// SPDX-License-Identifier: MIT

// CUDA graphs of the entries: each captured in one run of its entry and
// launched whole from then on. A graph holds addresses and constants; what
// changes from step to step is read through the step block (ABI/kernel.h). An
// entry has a few variants, by how much of its micro-batch has a label
// (LabelShare.h), each with a graph of its own.
//
// What a graph holds has run before it is captured, command by command: the
// driver and its libraries load a kernel when it first runs, which a capture
// does not allow, and a variant has products that no other has.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAGRAPHS_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAGRAPHS_H

#include <vector>

#include "runtime/Device/Cuda/CudaHandle.h"

namespace qlora {

/// How the commands of an entry reach the card.
enum class GraphMode { kDirect, kCapture, kReplay };

class CudaGraphs {
public:
  void create(const CudaDriver &driver, CUstream stream, size_t count);

  /// What the next run of that graph's work is.
  GraphMode modeOf(size_t graph) const;
  /// Its work has been enqueued command by command.
  void markRun(size_t graph) { graphs[graph].hasRun = true; }
  Status launch(size_t graph);

  /// What goes onto the stream, and onto streams that branch off it and join
  /// it, is recorded instead of run.
  Status beginCapture();
  /// The recorded work becomes that graph. It has not run yet.
  Status endCapture(size_t graph);
  /// Ends a capture that has failed.
  void abandonCapture();

private:
  const CudaDriver *driver = nullptr;
  CUstream stream = nullptr;
  struct Graph {
    CudaGraphExec executable; ///< empty: not captured
    bool hasRun = false;      ///< its work, command by command
  };
  std::vector<Graph> graphs;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAGRAPHS_H
