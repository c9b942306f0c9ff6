// SPDX-License-Identifier: MIT

// CUDA graphs of the entries: each captured in one run of its entry and
// launched whole from then on. A graph holds addresses and constants; what
// changes from step to step is read through the step block (ABI/kernel.h). An
// entry has a few variants, by how much of its micro-batch has a label
// (LabelShare) and by whether lines have segments, each with a graph of its own.
//
// What a graph holds has run before it is captured, command by command: the
// driver and its libraries load a kernel when it first runs, which a capture
// does not allow, and a variant has products that no other has.

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

  /// A run of that graph's work: launches it where it was captured, else what
  /// follows is captured, or runs command by command, the first time and where
  /// `isDirect`.
  Status begin(size_t graph, bool isDirect);
  /// Whether begin() has launched all of it.
  bool isReplaying() const { return mode == Mode::kReplay; }
  /// `status`, of what was enqueued; where that has failed, a capture ends.
  Status orAbandon(const Status &status);
  /// Ends a capture, which becomes nothing.
  void abandon();
  /// All has been enqueued. `counts`: the work may be captured when it next
  /// runs.
  Status end(bool counts);

  Status launch(size_t graph);

  /// What goes onto the stream, and onto streams that branch off it and join
  /// it, is recorded instead of run.
  Status beginCapture();
  /// The recorded work becomes that graph. It has not run yet.
  Status endCapture(size_t graph);

private:
  /// How the commands of an entry reach the card.
  enum class Mode { kDirect, kCapture, kReplay };

  const CudaDriver *driver = nullptr;
  CUstream stream = nullptr;
  struct Graph {
    CudaGraphExec executable; ///< empty: not captured
    bool hasRun = false;      ///< its work, command by command
  };
  std::vector<Graph> graphs;
  size_t current = 0;
  Mode mode = Mode::kDirect; ///< of the current one
};

// A captured graph cannot leave work out, but one for fewer labels can be
// another graph: the share of labelled rows, in quarters. Ranks that add up in
// an entry are told the same labelled_rows, and so have the same share.

inline constexpr size_t kLabelShares = 4;
inline constexpr size_t kSegmentKinds = 2; ///< MicroBatch::hasOneSegment

struct LabelShare {
  size_t index = kLabelShares - 1;  ///< among the graphs of an entry
  int64_t labelledRows = INT64_MAX; ///< that it has room for

  /// The smallest share with room for the labels of this micro-batch. An
  /// entry without a micro-batch has one share.
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
