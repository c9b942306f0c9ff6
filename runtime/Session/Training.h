// SPDX-License-Identifier: MIT

// The training loop: accumulate, update, log, evaluate, save, stop.

#ifndef QLORA_RUNTIME_SESSION_TRAINING_H
#define QLORA_RUNTIME_SESSION_TRAINING_H

#include "runtime/Base/Status.h"
#include "runtime/Checkpoint/CheckpointWriter.h"
#include "runtime/Checkpoint/Resume.h"
#include "runtime/Checkpoint/Run.h"
#include "runtime/Session/RunExtra.h"
#include "runtime/Watch/StepLog.h"

namespace qlora {

struct TrainingResult {
  int64_t steps = 0; ///< includes skipped steps and steps of earlier runs
  double epoch = 0;
  StepTotals totals;
  int stopSignal = 0; ///< signal that ended training early, on any rank; or 0
  bool hasStoppedEarly = false; ///< ended by --early-stopping-patience
  bool justEvaluated = false;   ///< whether the last step was evaluated
  int64_t savedStep = 0; ///< step of this run's last checkpoint; 0: none
  double saveSeconds = 0; ///< time that training waited for checkpoints
  int64_t bestStep = 0;  ///< step of the best evaluation; 0: none

  /// Returns whether the result is the best adapter instead of the last.
  bool takesBest(const Options &options) const {
    return options.boolean("load_best_model_at_end") && stopSignal == 0 &&
           bestStep > 0 && bestStep != steps;
  }
};

/// Optional objects of a training; null if absent.
struct TrainingTools {
  const RunExtras &extras;
  CheckpointWriter *writer = nullptr; ///< only on rank 0, if it saves
  const ResumePoint *resume = nullptr; ///< checkpoint whose arenas are restored
};

/// Trains from the resumed step to Run::totalSteps. A step without labels is
/// skipped with a warning; NonFinite.h handles losses that are not finite.
///
/// After a stop signal (StopSignal.h), the current step skips its micro-batches
/// up to the last, whose collectives the other ranks need. A step that skipped
/// a micro-batch does not count, and the run that resumes repeats it. In
/// lockstep (StepShape) none is skipped. All ranks stop after the same step.
StatusOr<TrainingResult> train(const Run &run, const TrainingTools &tools);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_TRAINING_H
