// SPDX-License-Identifier: MIT

// --auto-find-batch-size: chooses the batch from the plan of each candidate,
// without trial runs. A plan is exact to the byte, so no run fails.
//
// Chooses the largest candidate (runtime/Base/StepRows.h) whose plan fits the
// memory limit and whose predicted time per row is within 1 % of the smallest.
// Larger batches share the decoding of weights, until blocks must be recomputed
// to save memory. Plans and recomputation grow with the batch, so the search
// ends at the first batch that does not fit or takes 5 % more time per row.

#ifndef QLORA_TOOLS_QLORACC_BATCHSEARCH_H
#define QLORA_TOOLS_QLORACC_BATCHSEARCH_H

#include "tools/qloracc/StepPlan.h"

namespace qlora {

struct FoundBatch {
  int64_t batch = 0;
  StepPlan plan; ///< plan with `batch`
  /// Why the batch was chosen, in one line; empty if its plan does not fit.
  std::string reason;
};

/// Chooses one of settings.batches and calls setBatch(). Does not change
/// `model`. If no plan fits, chooses the smallest candidate, and the compile
/// reports the missing bytes. Errors are diagnostics of the model's context.
mlir::FailureOr<FoundBatch> findBatch(mlir::ModuleOp model,
                                      CompilerSettings &settings,
                                      const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_BATCHSEARCH_H
