// SPDX-License-Identifier: MIT

// What the parts of a training run share, once everything is loaded; nothing
// of it changes any more.

#ifndef QLORA_RUNTIME_SESSION_RUN_H
#define QLORA_RUNTIME_SESSION_RUN_H

#include <optional>
#include <string>

#include "runtime/Base/Options.h"
#include "runtime/Data/Dataset.h"
#include "runtime/Device/Device.h"
#include "runtime/Device/Program.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Predict/MemoryPlan.h"
#include "runtime/Watch/Metrics.h"

namespace qlora {

class Profiler;

/// References to what the session owns.
struct Run {
  const LoadedModule &module;
  const Options &options;
  RankGroup &group;
  Device &device;
  Program &program;
  KernelObserver &observer;
  Dataset *const train;      ///< null: only evaluate
  Dataset *const validation; ///< null: no evaluation
  Metrics *const metrics;    ///< null on ranks other than 0
  Profiler *const profiler;  ///< null: no profile is asked for
  const std::string outputFolder;
  const StepShape stepShape;
  /// Steps that the options ask for; 0 without data to train on.
  const int64_t totalSteps;
  const RunMemory memory;
  const std::string hardware; ///< "CPU, 2 threads"

  /// What the loss of the routers is multiplied with; 0: there is none, or
  /// nobody has said.
  double routerFactor() const {
    const auto &factor = options.recordedFact("router_aux_loss_coef");
    return program.hasRouterLoss() && factor.is_number() ? factor.get<double>()
                                                         : 0;
  }
  /// Which rank runs which micro-batches of a step.
  Deal dealOf(int64_t step) const {
    return train->schedule().deal(step, stepShape);
  }
  /// Micro-batches of a step over all ranks, those with the same rows counted
  /// once.
  int64_t perStep() const { return stepShape.count(); }
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RUN_H
