// SPDX-License-Identifier: MIT

// State that all parts of a run share, constant once everything is loaded.

#ifndef QLORA_RUNTIME_CHECKPOINT_RUN_H
#define QLORA_RUNTIME_CHECKPOINT_RUN_H

#include <string>

#include "runtime/Data/Dataset.h"
#include "runtime/Device/Device.h"
#include "runtime/Device/Program.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"
#include "runtime/Predict/MemoryPlan.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Watch/Metrics.h"

namespace qlora {

class AnswerEvaluation;
class Profiler;

/// References to objects that the session owns.
struct Run {
  const LoadedModule &module;
  const Options &options;
  RankGroup &group;
  Device &device;
  Program &program;
  KernelObserver &observer;
  Dataset *const train;      ///< null: the run only evaluates
  Dataset *const validation; ///< null: no evaluation
  Metrics *const metrics;    ///< null on ranks other than 0
  Profiler *const profiler;  ///< null: no profile is requested
  AnswerEvaluation *const answers; ///< null: no answers are generated
  const std::string outputFolder;
  const StepShape stepShape;
  /// Number of steps that the options request; 0 without training data.
  const int64_t totalSteps;
  const RunMemory memory;
  const std::string hardware; ///< such as "CPU, 2 threads"

  /// Returns the factor of the router loss; 0: none, or not recorded.
  double routerFactor() const {
    const auto &factor = options.recordedMetadata("router_aux_loss_coef");
    return program.hasRouterLoss() && factor.is_number() ? factor.get<double>()
                                                         : 0;
  }
  /// Returns the assignment of a step's micro-batches to ranks.
  MicroBatchAssignment assignmentOf(int64_t step) const {
    return train->schedule().deal(step, stepShape);
  }
  /// Returns the number of micro-batches of a step on all ranks together. Ranks
  /// that share a micro-batch's rows count it once.
  int64_t perStep() const { return stepShape.count(); }
};

} // namespace qlora

#endif // QLORA_RUNTIME_CHECKPOINT_RUN_H
