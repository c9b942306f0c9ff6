// SPDX-License-Identifier: MIT

// --auto-find-batch-size: chooses the batch from the plan of each candidate,
// without trial runs. A plan is exact to the byte, so no run fails.
//
// Chooses the largest candidate (runtime/Options/StepRows.h) whose plan fits
// the memory limit and whose predicted time per row is within 1 % of the
// smallest. Larger batches share the decoding of weights, until blocks must be
// recomputed to save memory. Plans and recomputation grow with the batch, so
// the search ends at the first batch that does not fit or takes 5 % more time
// per row.

#ifndef QLORA_COMPILER_SEARCH_BATCHSEARCH_H
#define QLORA_COMPILER_SEARCH_BATCHSEARCH_H

#include "compiler/Search/StepPlan.h"

namespace qlora {

struct FoundBatch {
  int64_t batch = 0;
  StepPlan plan; ///< plan with `batch`
  /// Why the batch was chosen, in one line; empty without candidates, or if
  /// its plan does not fit.
  std::string reason;
};

/// Chooses one of settings.batches and calls setBatch(); without candidates,
/// plans the given batch. If no plan fits, chooses the smallest candidate, and
/// the compile reports the missing bytes. Errors are diagnostics at `location`.
mlir::FailureOr<FoundBatch> findBatch(mlir::Location location,
                                      PlanSettings &settings, StepPlanner plan);

} // namespace qlora

#endif // QLORA_COMPILER_SEARCH_BATCHSEARCH_H
