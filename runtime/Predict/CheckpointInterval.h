// SPDX-License-Identifier: MIT

// How often a run should save a checkpoint, if its machines fail now and then.
// If a checkpoint stops the run for C seconds and a failure comes every M
// seconds, saving every sqrt(2 C M) seconds loses the least time: C per
// checkpoint and half an interval per failure (Young, 1974). The run waits
// while a checkpoint is copied, and continues while it is written. The next
// checkpoint cannot start before that write has ended, and a failure also loses
// the time of a write.

#ifndef QLORA_RUNTIME_PREDICT_CHECKPOINTINTERVAL_H
#define QLORA_RUNTIME_PREDICT_CHECKPOINTINTERVAL_H

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "runtime/Module/ModuleLoader.h"
#include "runtime/Predict/StepPrediction.h"

namespace qlora {

struct CheckpointInterval {
  int64_t machines = 1;
  double machineHours = 0;    ///< mean time between failures of one machine
  double failureSeconds = 0;  ///< M: between failures of any machine
  uint64_t bytes = 0;         ///< trainable parameters and optimizer states
  double copySeconds = 0;     ///< C: training stops meanwhile
  double writeSeconds = 0;
  int64_t steps = 1;          ///< steps between checkpoints: --save-steps
  double seconds = 0;         ///< duration of that many steps
  double lostShare = 0; ///< fraction of time lost, without restarts; at most 1

  std::string text() const;
  nlohmann::ordered_json toJson() const;
};

/// Returns the interval for steps like `step`, on machines of `gpusPerNode`
/// ranks that each fail every `machineHours`.
CheckpointInterval checkpointInterval(const LoadedModule &module,
                                      const StepPrediction &step,
                                      int64_t gpusPerNode, double machineHours);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_CHECKPOINTINTERVAL_H
