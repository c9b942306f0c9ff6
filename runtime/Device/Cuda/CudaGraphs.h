// SPDX-License-Identifier: MIT

// CUDA graphs of the entries. Each graph is captured in one run of its entry
// and launched as a whole afterwards. A graph holds addresses and constants;
// values that change per step are read through the step block (ABI/kernel.h).
// An entry has one graph for each labelled fraction of its micro-batch
// (LabelShare) and for each value of MicroBatch::hasOneSegment.
//
// Before the capture of a graph, its commands run once, one by one. The driver
// and its libraries load a kernel when it first runs, which a capture does not
// allow. This is done for each graph, because graphs may have different GEMMs.

#ifndef QLORA_RUNTIME_DEVICE_CUDA_CUDAGRAPHS_H
#define QLORA_RUNTIME_DEVICE_CUDA_CUDAGRAPHS_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Device/Cuda/CudaHandle.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

class CudaGraphs {
public:
  void create(const CudaDriver &driver, CUstream stream, size_t count);

  /// Begins a run of the graph's work:
  ///
  ///   isDirect                the following commands run one by one
  ///   first run               the following commands run one by one
  ///   next run                the following commands are captured
  ///   graph was captured      launches the graph; no commands follow
  Status begin(size_t graph, bool isDirect);
  /// Whether begin() has launched the whole graph.
  bool isReplaying() const { return mode == Mode::kReplay; }
  /// Returns `status`, the status of enqueued work. If it is an error, abandons
  /// the capture.
  Status orAbandon(const Status &status);
  /// Ends a capture and discards it.
  void abandon();
  /// Ends an enqueued run. If `counts`, the graph's next run may be captured.
  Status end(bool counts);

  Status launch(size_t graph);

  /// Starts to record work instead of running it, on the stream and on streams
  /// that fork from it and join it.
  Status beginCapture();
  /// Makes a graph of the recorded work, which has not run yet.
  Status endCapture(size_t graph);

private:
  /// How the commands of an entry reach the GPU.
  enum class Mode { kDirect, kCapture, kReplay };

  const CudaDriver *driver = nullptr;
  CUstream stream = nullptr;
  struct Graph {
    CudaGraphExec executable; ///< empty: not captured
    bool hasRun = false;      ///< commands have run one by one
  };
  std::vector<Graph> graphs;
  size_t current = 0;
  Mode mode = Mode::kDirect; ///< mode of the current graph
};

// A captured graph cannot skip work. So, for each value of hasOneSegment, an
// entry has four graphs: for at most 1/4, 2/4, 3/4 and 4/4 labelled rows. If an
// entry has collectives, all ranks get the same labelled_rows, and so choose
// the same graph.

inline constexpr size_t kLabelShares = 4;
inline constexpr size_t kSegmentKinds = 2; ///< MicroBatch::hasOneSegment

struct LabelShare {
  size_t index = kLabelShares - 1;  ///< among the graphs of an entry
  int64_t labelledRows = INT64_MAX; ///< maximum rows that the graph computes

  /// Returns the smallest share that holds the labels of the step's
  /// micro-batch; the largest share for entries without a micro-batch.
  static LabelShare of(const LoadedModule &module, const qlora_entry &entry,
                       const qlora_step_block &step) {
    constexpr auto kShares = static_cast<int64_t>(kLabelShares);
    const int64_t rows = module.tokensOf(entry);
    if (rows == 0)
      return {};
    const int64_t labels =
        std::min(static_cast<int64_t>(step.labelled_rows), rows);
    const int64_t share =
        std::max<int64_t>(1, (labels * kShares + rows - 1) / rows);
    return {static_cast<size_t>(share - 1),
            (rows * share + kShares - 1) / kShares};
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_CUDAGRAPHS_H
