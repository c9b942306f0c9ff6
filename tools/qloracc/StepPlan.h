// SPDX-License-Identifier: MIT

// What a compile with other settings would come to: its plan, to the byte, and
// the step that the cost model predicts of it.

#ifndef QLORA_TOOLS_QLORACC_STEPPLAN_H
#define QLORA_TOOLS_QLORACC_STEPPLAN_H

#include "mlir/IR/BuiltinOps.h"

#include "compiler/Report/CommandTimes.h"
#include "tools/qloracc/Settings.h"

namespace qlora {

struct StepPlan {
  bool fits = false; ///< both limits
  int64_t bytes = 0; ///< of a rank; of the smallest plan where none fits
  int64_t hostBytes = 0; ///< pinned, of a plan within --memory-limit
  // Predicted, on `ranks` ranks of the settings; 0 where none fits.
  double rowSeconds = 0; ///< a row of the largest micro-batch
  StepSeconds step;
  double stepRows = 0; ///< of all ranks that have rows of their own
};

/// Of a copy of `model`. Errors are diagnostics of its context.
mlir::FailureOr<StepPlan> planStep(mlir::ModuleOp model,
                                   const CompilerSettings &settings,
                                   const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_STEPPLAN_H
