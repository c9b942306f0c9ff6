// SPDX-License-Identifier: MIT

// What a run does besides training: a dump, a model card, a push to the Hub
// (runtime/Extras). A session calls these objects and does not know them.

#ifndef QLORA_RUNTIME_SESSION_RUNEXTRA_H
#define QLORA_RUNTIME_SESSION_RUNEXTRA_H

#include <memory>
#include <vector>

#include "runtime/Checkpoint/Run.h"

namespace qlora {

struct DataSummary;
struct TrainingResult;

/// Called by the session's thread, on all ranks unless stated. An error ends
/// the run.
class RunExtra {
public:
  virtual ~RunExtra() = default;

  /// Called when all weights are loaded, before files of an earlier run are
  /// replaced.
  virtual Status begin(const Run &) { return Status::ok(); }
  /// Called before the first update, with the gradients of `step` (0-based).
  virtual Status firstGradients(const Run &, int64_t /*step*/) {
    return Status::ok();
  }
  /// Called on rank 0 when the adapter and the metrics have been written.
  virtual Status end(const Run &, const DataSummary &, const TrainingResult &) {
    return Status::ok();
  }
};

using RunExtras = std::vector<std::unique_ptr<RunExtra>>;

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RUNEXTRA_H
