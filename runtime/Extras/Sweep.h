// SPDX-License-Identifier: MIT

// Trains several adapters on one base at the same time, in one process. Each
// run has its own adapter, optimizer, activations, schedule, metrics and
// folder. Base weights are decoded once for all runs (Device/Cpu/SweepTurns.h).
// The results of each run equal those of a separate run.
//
//   qlora-run r8.so r16.so --sweep learning_rate=1e-4,2e-4 lora_r=8,16
//
// A failed run does not affect the others. A sweep needs one rank, on a CPU.

#ifndef QLORA_RUNTIME_EXTRAS_SWEEP_H
#define QLORA_RUNTIME_EXTRAS_SWEEP_H

#include <functional>
#include <string>
#include <vector>

#include "runtime/Options/SweepGrid.h"
#include "runtime/Session/SessionRequest.h"

namespace qlora {

struct SweepRequest {
  SessionRequest common; ///< settings of all runs, without the module
  /// Programs; each run takes the first that was compiled with its values.
  std::vector<std::string> modules;
  std::vector<SweepAxis> axes;
  int ranks = 1; ///< requested number of ranks
  /// Called once for each run that fails, from one thread at a time.
  std::function<void(const Status &)> report;
};

/// Trains all runs into subfolders of --output-dir with the runs' names, and
/// writes a page there that compares them. Returns the exit code: 0, 1 if a run
/// failed, or 128 + the signal that stopped them.
StatusOr<int> runSweep(const SweepRequest &request, const RankEnvironment &env);

} // namespace qlora

#endif // QLORA_RUNTIME_EXTRAS_SWEEP_H
