// SPDX-License-Identifier: MIT

// One optimizer step, handed to the device whole: its micro-batches, what ranks
// tell each other, and the update. Nothing here waits for results.

#ifndef QLORA_RUNTIME_SESSION_STEPSUBMITTER_H
#define QLORA_RUNTIME_SESSION_STEPSUBMITTER_H

#include "runtime/Base/Status.h"
#include "runtime/Session/Dump.h"
#include "runtime/Session/LearningRate.h"
#include "runtime/Session/Run.h"

namespace qlora {

/// A step that the device may still be working on; summed over all ranks.
struct SubmittedStep {
  int64_t step = 0;
  int64_t tokens = 0;
  int64_t labels = 0; ///< none: there was no update
  /// A micro-batch was left out: it does not count. Never in lockstep.
  bool isCut = false;
};

/// What signals have asked of any rank.
struct SignalRequests {
  int stop = 0;      ///< SIGINT or SIGTERM
  bool save = false; ///< SIGUSR1
};

/// Used by the session's thread. `run` and `dump` (or null) outlive it.
class StepSubmitter {
public:
  StepSubmitter(const Run &run, Dump *dump);

  /// Where it is cut, its sums are left to be finished and there is no update.
  StatusOr<SubmittedStep> submit(int64_t step, SignalRequests &requests);

  qlora_step_block block(int64_t step) const;
  double rateAt(int64_t step) const { return rate.at(step); }

  /// The optimizer's own count, which skipped steps are not in.
  int64_t updates = 0;

private:
  /// What the optimizer multiplies the rate of the next update with, which
  /// metrics do not show: the warm-up of schedulefree.
  double ownFactor() const;
  Status readBatch(int64_t step, int64_t index);
  Status accumulate(qlora_step_block &block, SubmittedStep &own);
  Status accumulateAsTree(qlora_step_block &block, SubmittedStep &own);
  Status readOwn(int64_t index, qlora_step_block &block, SubmittedStep &own);
  Status agree(SubmittedStep &step, SignalRequests &requests);
  Status dumpFirst(const SubmittedStep &first);

  const Run &run;
  Dump *const dump;
  const Options &options;
  const LearningRate rate;
  MicroBatch batch;
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_STEPSUBMITTER_H
