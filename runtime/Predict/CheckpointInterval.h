// SPDX-License-Identifier: MIT

// How often to save, of a run whose machines fail now and then: where a
// checkpoint stops it for C seconds, and it loses what it has done since the
// last one every M seconds, saving every sqrt(2 C M) seconds loses the least
// time: C each time, and half an interval with each failure (Young, 1974). A
// checkpoint is copied while the run waits, and written while it goes on: there
// is none before the last one is written, and a failure loses the time of a
// write, too.

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
  double machineHours = 0;    ///< between two failures of one
  double failureSeconds = 0;  ///< M, between two of any
  uint64_t bytes = 0;         ///< what is trained, and what optimizers keep
  double copySeconds = 0;     ///< C
  double writeSeconds = 0;
  int64_t steps = 1;          ///< --save-steps
  double seconds = 0;         ///< of so many steps
  double lostShare = 0; ///< of the time, without what a restart takes; 1 at most

  std::string text() const;
  nlohmann::ordered_json toJson() const;
};

/// Of steps as `step`, on machines of `gpusPerNode` ranks, one of which fails
/// every `machineHours`.
CheckpointInterval checkpointInterval(const LoadedModule &module,
                                      const StepPrediction &step,
                                      int64_t gpusPerNode, double machineHours);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_CHECKPOINTINTERVAL_H
