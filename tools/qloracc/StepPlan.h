// SPDX-License-Identifier: MIT

// Plan of a compile with given settings, exact to the byte, and its step time
// as predicted by the cost model.

#ifndef QLORA_TOOLS_QLORACC_STEPPLAN_H
#define QLORA_TOOLS_QLORACC_STEPPLAN_H

#include "mlir/IR/BuiltinOps.h"

#include "compiler/Report/CommandTimes.h"
#include "tools/qloracc/Settings.h"

namespace qlora {

struct StepPlan {
  bool fits = false; ///< within both limits
  int64_t bytes = 0; ///< per rank; of the smallest plan if none fits
  int64_t hostBytes = 0; ///< pinned, per rank; 0 if no plan fits
  // Predicted times for CompilerSettings::ranks ranks; 0 above --memory-limit.
  double rowSeconds = 0; ///< for one row of the largest micro-batch
  StepSeconds step;
  double stepRows = 0; ///< rows of a step, over all ranks
};

/// Plans a copy of `model`. Errors are diagnostics of its context.
mlir::FailureOr<StepPlan> planStep(mlir::ModuleOp model,
                                   const CompilerSettings &settings,
                                   const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_STEPPLAN_H
