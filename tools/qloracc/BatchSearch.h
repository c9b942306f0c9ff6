// SPDX-License-Identifier: MIT

// --auto-find-batch-size: the batch from the plan of each candidate, and not by
// running out of memory. A plan is what a run takes, to the byte, so that the
// first step is the proof and no run has to fail.
//
// Of the candidates (runtime/Base/StepRows.h) whose plan fits the memory limit
// it takes the largest whose predicted time for a row is within 1 % of the
// least: larger batches share the decoding of weights, until blocks have to be
// computed again to make room. Plans grow with the batch, and so does what is
// computed again: the search ends at the first that does not fit, or whose row
// takes 5 % more.

#ifndef QLORA_TOOLS_QLORACC_BATCHSEARCH_H
#define QLORA_TOOLS_QLORACC_BATCHSEARCH_H

#include "tools/qloracc/StepPlan.h"

namespace qlora {

struct FoundBatch {
  int64_t batch = 0;
  StepPlan plan;      ///< of it
  std::string reason; ///< one line; empty where not even this batch fits
};

/// Sets the batch of `settings`, which has candidates; `model` is left as it is.
/// Where no plan fits, the batch is the smallest candidate, whose compile then
/// says what is missing. Errors are diagnostics of the model's context.
mlir::FailureOr<FoundBatch> findBatch(mlir::ModuleOp model,
                                      CompilerSettings &settings,
                                      const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_BATCHSEARCH_H
