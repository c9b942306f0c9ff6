// SPDX-License-Identifier: MIT

// Submits one optimizer step to the device: its micro-batches, the exchange
// between ranks, and the update. Nothing here waits for results.

#ifndef QLORA_RUNTIME_SESSION_STEPSUBMITTER_H
#define QLORA_RUNTIME_SESSION_STEPSUBMITTER_H

#include "runtime/Base/Status.h"
#include "runtime/Checkpoint/Run.h"
#include "runtime/Options/LearningRate.h"
#include "runtime/Session/RunExtra.h"
#include "runtime/Session/SignalAgreement.h"

namespace qlora {

/// Used by the session's thread. `run` and `extras` must outlive it.
class StepSubmitter {
public:
  StepSubmitter(const Run &run, const RunExtras &extras);

  /// Submits `step`. A step that isCut has sums of losses, but no update.
  StatusOr<SubmittedStep> submit(int64_t step, SignalRequests &requests);

  qlora_step_block block(int64_t step) const;
  double rateAt(int64_t step) const { return rate.at(step); }

  /// Optimizer updates so far, without skipped steps.
  int64_t updates = 0;

private:
  /// Returns schedule-free AdamW's warm-up factor of the learning rate; 1 for
  /// other optimizers. The rate in the metrics does not include the factor.
  double ownFactor() const;
  Status readBatch(int64_t step, int64_t index);
  Status accumulate(qlora_step_block &block, SubmittedStep &own);
  Status accumulateAsTree(qlora_step_block &block, SubmittedStep &own);
  Status readOwn(int64_t index, qlora_step_block &block, SubmittedStep &own);

  const Run &run;
  const RunExtras &extras;
  const Options &options;
  const LearningRate rate;
  MicroBatch batch;
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_STEPSUBMITTER_H
