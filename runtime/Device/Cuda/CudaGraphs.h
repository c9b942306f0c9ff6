// SPDX-License-Identifier: MIT

// CUDA graphs of the entries: each captured in one run of its entry and
// launched whole from then on. A graph holds addresses and constants; what
// changes from step to step is read through the step block (ABI/kernel.h). An
// entry has a few variants, by how much of its micro-batch has a label
// (LabelShare.h).

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAGRAPHS_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAGRAPHS_H

#include <vector>

#include "runtime/Device/Cuda/CudaHandle.h"

namespace qlora {

class CudaGraphs {
public:
  void create(const CudaDriver &driver, CUstream stream, size_t count);

  bool has(size_t graph) const { return static_cast<bool>(graphs[graph]); }
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
  std::vector<CudaGraphExec> graphs; ///< empty: not captured
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAGRAPHS_H
