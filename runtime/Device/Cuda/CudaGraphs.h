// SPDX-License-Identifier: MIT

// One CUDA graph for each entry: captured in one of its runs and launched
// whole from then on. A graph holds addresses and constants; what changes from step
// to step is read through the step block (ABI/kernel.h).

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAGRAPHS_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAGRAPHS_H

#include <vector>

#include "runtime/Device/Cuda/CudaHandle.h"

namespace qlora {

class CudaGraphs {
public:
  void create(const CudaDriver &driver, CUstream stream, size_t entries);

  bool has(size_t entry) const { return static_cast<bool>(graphs[entry]); }
  Status launch(size_t entry);

  /// What goes onto the stream, and onto streams that branch off it and join
  /// it, is recorded instead of run.
  Status beginCapture();
  /// The recorded work becomes the graph of `entry`. It has not run yet.
  Status endCapture(size_t entry);
  /// Ends a capture that has failed.
  void abandonCapture();

private:
  const CudaDriver *driver = nullptr;
  CUstream stream = nullptr;
  std::vector<CudaGraphExec> graphs; ///< per entry; empty: not captured
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAGRAPHS_H
