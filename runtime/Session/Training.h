// SPDX-License-Identifier: MIT

// The training loop: accumulate, update, log, evaluate, save, stop.

#ifndef QLORA_RUNTIME_SESSION_TRAINING_H
#define QLORA_RUNTIME_SESSION_TRAINING_H

#include "runtime/Base/Status.h"
#include "runtime/Session/Dump.h"
#include "runtime/Session/Run.h"
#include "runtime/Watch/StepLog.h"

namespace qlora {

struct TrainingResult {
  int64_t steps = 0; ///< done, skipped ones included
  double epoch = 0;
  StepTotals totals;
  int stopSignal = 0;         ///< that ended it early, on any rank; or 0
  bool justEvaluated = false; ///< after the last step
};

/// Runs Run::totalSteps. A step without labels is skipped with a warning; a
/// loss or norm that is not finite is an error, before anything is written.
/// `dump` may be null.
StatusOr<TrainingResult> train(const Run &run, Dump *dump);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_TRAINING_H
