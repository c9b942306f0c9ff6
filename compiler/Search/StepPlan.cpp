// SPDX-License-Identifier: MIT

// Runs all phases on a copy, then the cost model.

#include "compiler/Search/StepPlan.h"

#include "compiler/Driver.h"
#include "compiler/Schedule/EntryBuffers.h"
#include "runtime/Base/Amounts.h"
#include "runtime/Options/StepRows.h"

#include <utility>

using namespace mlir;

namespace qlora {

static LogicalResult predict(ModuleOp program, const PlanSettings &settings,
                             const DeviceProfile &device, StepPlan &plan) {
  StatusOr<int64_t> microBatches =
      accumulationSteps(settings.options, settings.rowRanks());
  if (!microBatches.isOk())
    return emitError(program.getLoc(), microBatches.status().message());
  FailureOr<PlanTimes> times =
      PlanTimes::create(program, device, settings.ranks);
  if (failed(times))
    return failure();
  const int64_t batch = settings.compile.batch;
  plan.rowSeconds = times->ofLastMicroBatch() / double(batch);
  plan.step = times->ofStep(*microBatches);
  plan.stepRows = double(batch * *microBatches * settings.rowRanks());
  return success();
}

FailureOr<StepPlan> planStep(ModuleOp model, const PlanSettings &settings,
                             const DeviceProfile &device) {
  CompileOptions options = settings.compile;
  options.remarks = false;
  // Plan without the host limit, which is compared with the plan below.
  const int64_t hostLimit = std::exchange(options.hostMemoryLimit, 0);
  OwningOpRef<ModuleOp> program = model.clone();
  Driver driver(*model.getContext(), options);
  // Suppress warnings here: the compile itself gives them once.
  ScopedDiagnosticHandler quiet(model.getContext(), [](Diagnostic &diagnostic) {
    return success(diagnostic.getSeverity() != DiagnosticSeverity::Error);
  });
  const FailureOr<bool> fits = driver.plan(program);
  if (failed(fits))
    return failure();
  StepPlan plan;
  if (!*fits) {
    plan.bytes = driver.smallestBytes();
    return plan;
  }
  plan.bytes = plannedBytes(*program);
  plan.hostBytes = plannedHostBytes(*program);
  plan.fits = hostLimit <= 0 || plan.hostBytes <= hostLimit;
  if (failed(predict(*program, settings, device, plan)))
    return failure();
  return plan;
}

std::string planText(int64_t bytes, int64_t limit) {
  std::string plan = formatBytes(bytes);
  if (limit <= 0)
    return plan;
  const std::string most = formatBytes(limit);
  const std::string unit = most.substr(most.find(' '));
  if (plan.ends_with(unit))
    plan.resize(plan.size() - unit.size());
  return plan + " of " + most;
}

} // namespace qlora
