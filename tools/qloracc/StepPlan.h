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
  int64_t hostBytes = 0; ///< pinned; of a plan within --memory-limit
  // Predicted for `ranks` ranks of the settings; 0 if no plan fits.
  double rowSeconds = 0; ///< for one row of the largest micro-batch
  StepSeconds step;
  double stepRows = 0; ///< over all ranks that have rows of their own
};

/// Plans a copy of `model`. Errors are diagnostics of its context.
mlir::FailureOr<StepPlan> planStep(mlir::ModuleOp model,
                                   const CompilerSettings &settings,
                                   const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_STEPPLAN_H
