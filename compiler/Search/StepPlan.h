// SPDX-License-Identifier: MIT

// Plan of a compile with given settings, exact to the byte, and its step time
// as predicted by the cost model.

#ifndef QLORA_COMPILER_SEARCH_STEPPLAN_H
#define QLORA_COMPILER_SEARCH_STEPPLAN_H

#include "mlir/IR/BuiltinOps.h"

#include "compiler/Report/PlanTimes.h"
#include "compiler/Search/PlanSettings.h"

namespace qlora {

struct StepPlan {
  bool fits = false;     ///< within both limits
  int64_t bytes = 0;     ///< per rank; of the smallest plan if none fits
  int64_t hostBytes = 0; ///< pinned, per rank; 0 if no plan fits
  // Predicted times for PlanSettings::ranks ranks; 0 above --memory-limit.
  double rowSeconds = 0; ///< for one row of the largest micro-batch
  StepSeconds step;
  double stepRows = 0; ///< rows of a step, over all ranks
};

/// Plans a copy of `model`. Errors are diagnostics of its context.
mlir::FailureOr<StepPlan> planStep(mlir::ModuleOp model,
                                   const PlanSettings &settings,
                                   const DeviceProfile &device);

/// Plans a model with the given settings: planStep(), or a substitute in tests.
using StepPlanner =
    llvm::function_ref<mlir::FailureOr<StepPlan>(const PlanSettings &)>;

/// Returns "5.9 of 6.0 GiB", or "38.1 MiB" without a limit.
std::string planText(int64_t bytes, int64_t limit);

} // namespace qlora

#endif // QLORA_COMPILER_SEARCH_STEPPLAN_H
