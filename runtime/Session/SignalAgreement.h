// SPDX-License-Identifier: MIT

// The ranks' agreement after each step. Signals reach ranks at different steps,
// but all ranks must stop, or save a checkpoint, after the same step.

#ifndef QLORA_RUNTIME_SESSION_SIGNALAGREEMENT_H
#define QLORA_RUNTIME_SESSION_SIGNALAGREEMENT_H

#include "runtime/Base/Status.h"
#include "runtime/Checkpoint/Run.h"

namespace qlora {

/// A step that may still be executing on the device; counts are over all ranks.
struct SubmittedStep {
  int64_t step = 0;
  int64_t tokens = 0;
  int64_t labels = 0; ///< 0: the step has no update
  /// Whether a micro-batch was skipped, so that the step does not count.
  bool isCut = false;
};

/// Signals received by any rank.
struct SignalRequests {
  int stop = 0;      ///< SIGINT or SIGTERM, or 0
  bool save = false; ///< whether SIGUSR1 requests a checkpoint
};

/// Replaces this rank's counts and flag in `step` by those of all ranks, and
/// adds the signals that any rank received to `requests`. All ranks call it.
Status agreeOnStep(const Run &run, SubmittedStep &step,
                   SignalRequests &requests);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_SIGNALAGREEMENT_H
