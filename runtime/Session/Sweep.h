// SPDX-License-Identifier: MIT

// Several trainings over one base at once, in one process: each has an adapter,
// an optimizer, activations, a schedule, metrics and a folder of its own, and
// what of the base has to be decoded is decoded once for all of them
// (Device/Cpu/SweepTurns.h). The numbers of each are those of its own run.
//
//   qlora-run r8.so r16.so --sweep learning_rate=1e-4,2e-4 lora_r=8,16
//
// One that fails leaves the others alone. One rank, on a CPU.

#ifndef QLORA_RUNTIME_SESSION_SWEEP_H
#define QLORA_RUNTIME_SESSION_SWEEP_H

#include <functional>
#include <string>
#include <vector>

#include "runtime/Base/SweepGrid.h"
#include "runtime/Session/SessionRequest.h"

namespace qlora {

struct SweepRequest {
  SessionRequest common; ///< of all runs, but for the module
  /// Each run takes the first that was compiled with its values.
  std::vector<std::string> modules;
  std::vector<SweepAxis> axes;
  int ranks = 1; ///< that were asked for
  /// Called once for each run that fails, from one thread at a time.
  std::function<void(const Status &)> report;
};

/// Trains them all, into folders of --output-dir with the names of the runs,
/// and leaves a page there that compares them. The exit code: 0, 1 where a run
/// has failed, or 128 + the signal that stopped them.
StatusOr<int> runSweep(const SweepRequest &request, const RankEnvironment &env);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_SWEEP_H
