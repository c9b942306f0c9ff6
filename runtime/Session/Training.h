// SPDX-License-Identifier: MIT

// The training loop: accumulate, update, log, evaluate, save, stop.

#ifndef QLORA_RUNTIME_SESSION_TRAINING_H
#define QLORA_RUNTIME_SESSION_TRAINING_H

#include "runtime/Base/Status.h"
#include "runtime/Session/Dump.h"
#include "runtime/Session/Run.h"

namespace qlora {

struct TrainingResult {
  int64_t steps = 0; ///< done, skipped ones included
  double epoch = 0;
  double seconds = 0;
  double meanLoss = 0;
  int64_t tokens = 0;         ///< of all ranks, without padding
  int stopSignal = 0;         ///< that ended it early, on any rank; or 0
  bool justEvaluated = false; ///< after the last step
  bool hasDiverged = false;   ///< a warning said so (Divergence.h)
};

/// Runs Run::totalSteps(). A step without labels is skipped with a warning; a
/// loss or norm that is not finite is an error, before anything is written.
/// `dump` may be null.
StatusOr<TrainingResult> train(Run &run, Dump *dump);

/// Rank 0 writes the adapter as it is now into `folder`.
Status saveAdapter(Run &run, const std::string &folder);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_TRAINING_H
