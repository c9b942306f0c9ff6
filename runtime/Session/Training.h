// SPDX-License-Identifier: MIT

// The training loop: accumulate, update, log, evaluate, save, stop.

#ifndef QLORA_RUNTIME_SESSION_TRAINING_H
#define QLORA_RUNTIME_SESSION_TRAINING_H

#include "runtime/Base/Status.h"
#include "runtime/Session/Checkpoint.h"
#include "runtime/Session/Dump.h"
#include "runtime/Session/Resume.h"
#include "runtime/Session/Run.h"
#include "runtime/Watch/StepLog.h"

namespace qlora {

struct TrainingResult {
  int64_t steps = 0; ///< done, skipped and earlier runs' included
  double epoch = 0;
  StepTotals totals;
  int stopSignal = 0; ///< that ended it early, on any rank; or 0
  bool hasStoppedEarly = false; ///< --early-stopping-patience
  bool justEvaluated = false;   ///< after the last step
  int64_t savedStep = 0; ///< of the last checkpoint of this run; 0: none
  double saveSeconds = 0; ///< that the training waited for checkpoints
  int64_t bestStep = 0;  ///< of the best evaluation; 0: none

  /// Whether another adapter than the last is the result.
  bool takesBest(const Options &options) const {
    return options.boolean("load_best_model_at_end") && stopSignal == 0 &&
           bestStep > 0 && bestStep != steps;
  }
};

/// What a training has beside its run; null where there is none.
struct TrainingTools {
  Dump *dump = nullptr;
  CheckpointWriter *writer = nullptr; ///< rank 0, unless nothing is saved
  const ResumePoint *resume = nullptr; ///< whose arenas are restored
};

/// Runs from where it is resumed to Run::totalSteps. A step without labels is
/// skipped with a warning; NonFinite.h has what happens to a loss or norm that
/// is not finite.
///
/// Signals (StopSignal.h): a step is finished, but no other micro-batch than
/// its last is begun, and where that leaves one out, the step is not counted
/// and done again by the run that resumes this one; in lockstep (StepShape)
/// none is left out. All ranks stop after the same step.
StatusOr<TrainingResult> train(const Run &run, const TrainingTools &tools);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_TRAINING_H
