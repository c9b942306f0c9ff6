// SPDX-License-Identifier: MIT

// Runs the phases in order, and searches for a plan within the memory limit.

#include "compiler/Driver.h"

#include "mlir/IR/Remarks.h"
#include "mlir/Pass/PassManager.h"

#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "compiler/Schedule/Commands.h"
#include "compiler/Schedule/EntryBuffers.h"

#include "runtime/ABI/module.h"

using namespace mlir;
using namespace qlora;

/// Maximum attempts of shrink() after the first.
static constexpr int kMaxAttempts = 8;
/// 1/kLostToPacking of the bytes for weights is reserved for fragmentation.
static constexpr int64_t kLostToPacking = 64;
/// Activation budget that no plan meets: rematerialize then minimizes the peak.
static constexpr int64_t kLeastBudget = 1;
/// No plan fits if the plan for leastBudget() exceeds the limit by this factor.
/// That plan is at most a few percent larger than the smallest plan.
static constexpr double kHopeless = 1.1;

/// Returns the largest `key` in the decisions of `pass` for all entries, or 0.
static int64_t largestDecision(ModuleOp module, StringRef pass, StringRef key) {
  int64_t largest = 0;
  for (auto entry : module.getOps<program::EntryOp>())
    if (auto decision = decisionOf<DictionaryAttr>(entry, pass))
      largest = std::max(largest, decision.getAs<IntegerAttr>(key).getInt());
  return largest;
}

/// Returns rematerialize's estimate of the activation arena's peak bytes. It
/// excludes workspaces, weights joined by concat-siblings, and fragmentation.
static int64_t estimatedPeak(ModuleOp module) {
  return largestDecision(module, "rematerialize", "estimated_peak");
}

/// Returns how many chunks of a batch have live activations at the same time.
/// A byte saved per chunk lowers the peak by this many bytes.
static int64_t chunksInFlight(ModuleOp module) {
  return std::max<int64_t>(
      1, largestDecision(module, "unroll-micro-batches", "in_flight"));
}

/// Returns the most bytes that MemoryBudget::inOrder can save: the largest
/// buffer written on a queue other than compute, plus weights gathered ahead.
static int64_t mostBytesAhead(ModuleOp module) {
  int64_t bytes = 0;
  module.walk([&](program::LaunchOp launch) {
    if (launch.getQueue() == program::Queue::Compute)
      return;
    for (Value buffer : buffersWritten(launch))
      bytes = std::max<int64_t>(bytes, rootOf(buffer).getBytes());
  });
  return bytes + largestDecision(module, "schedule-gathers", "room_bytes");
}

LogicalResult Driver::runPhase(const Phase &phase, ModuleOp module,
                               const MemoryBudget &budget) {
  PassManager pm(&context, ModuleOp::getOperationName());
  if (failed(applyPassManagerCLOptions(pm)))
    return failure();
  applyDefaultTimingPassManagerCLOptions(pm);
  phase.build(pm, options, budget);
  VerifyPhaseOptions verify;
  verify.phase = phase.name;
  pm.addPass(createVerifyPhase(verify));
  // verify-phase verifies once per phase; qlora-opt verifies after each pass.
  pm.enableVerifier(false);
  return pm.run(module);
}

LogicalResult Driver::optimizeAndPlan(ModuleOp module,
                                      const MemoryBudget &budget) {
  for (const Phase &phase : phases().drop_front(2))
    if (failed(runPhase(phase, module, budget)))
      return failure();
  return success();
}

/// Returns the budget for the smallest plan: the last of concessions(), the
/// fewest activations, no prefetched weights and no joined siblings.
MemoryBudget Driver::leastBudget() const {
  MemoryBudget least = concessions().back();
  least.activationBytes = kLeastBudget;
  least.inOrder = least.siblingsApart = true;
  return least;
}

/// Plans copies of `step` until a plan fits. Lowers the activation budget after
/// each attempt by the bytes over the limit. The last attempt minimizes the
/// peak, which error messages report. Leaves the smallest plan in `best`.
LogicalResult Driver::shrink(ModuleOp step, OwningOpRef<ModuleOp> &best) {
  for (int attempt = 0; attempt <= kMaxAttempts; ++attempt) {
    OwningOpRef<ModuleOp> plan = step.clone();
    if (failed(optimizeAndPlan(*plan, chosen)))
      return failure();
    int64_t bytes = plannedBytes(*plan);
    int64_t overshoot = bytes - options.memoryLimit;
    bool isEnd = overshoot <= 0 || chosen.activationBytes == kLeastBudget ||
                 !options.isEnabled("rematerialize");
    int64_t peak = isEnd ? 0 : estimatedPeak(*plan);
    overshoot = llvm::divideCeil(overshoot, chunksInFlight(*plan));
    if (!best || bytes < plannedBytes(*best))
      best = std::move(plan);
    if (isEnd)
      break;
    // A peak above its budget is as low as rematerialize can make it.
    bool isMet = !chosen.activationBytes || peak <= chosen.activationBytes;
    chosen.activationBytes =
        isMet && attempt + 1 < kMaxAttempts
            ? std::max<int64_t>(peak - overshoot, kLeastBudget)
            : kLeastBudget;
  }
  return success();
}

/// Returns the budgets to try, those with the fastest plans first. Step by step
/// they give up large workspaces, scratch for whole decoded weights, embedding
/// tables on the GPU, and the overlap of computation and copies to the host.
SmallVector<MemoryBudget> Driver::concessions() const {
  SmallVector<MemoryBudget> list;
  bool mayOffload = traits.offloadsTables && options.offloadEmbedding == "auto";
  bool mayPanel = options.dequant.form == "auto";
  for (bool offloadTables : {false, true})
    for (int given : {0, 1, 2}) {
      MemoryBudget budget = chosen;
      budget.offloadTables |= offloadTables;
      if (given > 0)
        budget.workspaces = WorkspaceSize::kSmall;
      budget.onlyPanels = given > 1 && mayPanel;
      bool isOther = given == 0 || (given == 1 && traits.hasRoomyKernels) ||
                     (given == 2 && mayPanel);
      if ((!offloadTables || mayOffload) && isOther)
        list.push_back(budget);
    }
  if (chosen.copiedValues == "hidden") {
    list.push_back(list.back());
    list.back().copiedValues = "crossing";
  }
  return list;
}

/// Refuses early if even the smallest plan is far above the limit. Does nothing
/// if explainsLimit, since the explanation needs all plans.
LogicalResult Driver::refuseHopeless(ModuleOp step) {
  if (explainsLimit)
    return success();
  OwningOpRef<ModuleOp> plan = step.clone();
  if (failed(optimizeAndPlan(*plan, leastBudget())))
    return failure();
  if (double(plannedBytes(*plan)) <= kHopeless * double(options.memoryLimit))
    return success();
  return refuseLimit(step, *plan);
}

/// Plans with `budget`, and chooses it if the plan fits.
LogicalResult Driver::tryBudget(ModuleOp step, const MemoryBudget &budget,
                                OwningOpRef<ModuleOp> &best) {
  OwningOpRef<ModuleOp> plan = step.clone();
  if (failed(optimizeAndPlan(*plan, budget)))
    return failure();
  if (plannedBytes(*plan) <= options.memoryLimit) {
    chosen = budget;
    best = std::move(plan);
  }
  return success();
}

/// Tries a plan with concat-siblings and without an activation budget. If it
/// does not fit, `best` stays empty, and later attempts omit concat-siblings.
LogicalResult Driver::joinIfRoomy(ModuleOp step, OwningOpRef<ModuleOp> &best) {
  if (!traits.prefersWideGemms || !options.isEnabled("concat-siblings"))
    return success();
  if (failed(tryBudget(step, chosen, best)))
    return failure();
  chosen.siblingsApart = !best;
  return success();
}

/// Spends the rest of the limit on frozen weights. If the base is sharded or in
/// host memory, keeps some stored weights on the device, which saves gathers.
/// Otherwise keeps some weights decoded.
LogicalResult Driver::keepWeights(ModuleOp step, OwningOpRef<ModuleOp> &best) {
  MemoryBudget roomy = chosen;
  const int64_t left = options.memoryLimit - plannedBytes(*best);
  if (options.mesh.fsdp > 1 || chosen.offloadBase)
    roomy.stayingBytes = left - left / kLostToPacking;
  else if (!chosen.onlyPanels && options.dequant.form == "auto")
    roomy.residentBytes = left;
  return roomy.stayingBytes > 0 || roomy.residentBytes > 0
             ? tryBudget(step, roomy, best)
             : success();
}

/// Chooses a budget whose plan is within the limit. Spends the rest of the
/// limit on large workspaces, then on weights.
LogicalResult Driver::fitMemory(ModuleOp step) {
  OwningOpRef<ModuleOp> best;
  chosen.workspaces = WorkspaceSize::kModest;
  if (failed(refuseHopeless(step)) || failed(joinIfRoomy(step, best)))
    return failure();
  for (const MemoryBudget &budget : concessions()) {
    if (best && plannedBytes(*best) <= options.memoryLimit)
      break;
    chosen = budget;
    if (failed(shrink(step, best)))
      return failure();
    // If running in order can save enough, no further concession is needed.
    int64_t overshoot = plannedBytes(*best) - options.memoryLimit;
    if (overshoot <= 0 || overshoot > mostBytesAhead(*best))
      continue;
    chosen.inOrder = true;
    if (failed(shrink(step, best)))
      return failure();
  }
  // The error reports the smallest plan's size, which must suffice as a limit.
  if (plannedBytes(*best) > options.memoryLimit && !chosen.inOrder) {
    chosen.inOrder = true;
    if (failed(shrink(step, best)))
      return failure();
  }
  if (plannedBytes(*best) > options.memoryLimit)
    return refuseLimit(step, *best);
  MemoryBudget roomy = chosen;
  roomy.workspaces = WorkspaceSize::kLarge;
  if (traits.hasRoomyKernels && chosen.workspaces == WorkspaceSize::kModest &&
      failed(tryBudget(step, roomy, best)))
    return failure();
  return keepWeights(step, best);
}

/// Erases micro-batch steps with fewer tokens than the largest. Returns true if
/// there were any.
static bool keepLargestSteps(ModuleOp module) {
  auto tokensOf = [](train::StepOp step) {
    return step.getBatch() * step.getLength();
  };
  uint64_t most = 0;
  for (auto step : module.getOps<train::StepOp>())
    most = std::max(most, tokensOf(step));
  bool isAnySmaller = false;
  for (auto step : llvm::make_early_inc_range(module.getOps<train::StepOp>()))
    if (step.getBatch() > 0 && tokensOf(step) < most) {
      step.erase();
      isAnySmaller = true;
    }
  return isAnySmaller;
}

/// Chooses the budget. To save time, first plans a smaller program: only the
/// largest steps, which determine arena sizes, and in a pipeline only a few
/// more chunks than are in flight. If the chosen budget does not fit the
/// complete program, which is rare, chooses again with all steps and chunks.
LogicalResult Driver::chooseBudget(ModuleOp module) {
  const MemoryBudget asked = chosen;
  OwningOpRef<ModuleOp> largest = module.clone(), all;
  const bool isAnySmaller = keepLargestSteps(*largest);
  const int64_t enough = options.unroll.parts == 1
                             ? options.mesh.pp - options.stage + 1
                             : 2 * options.mesh.pp;
  const bool hasMore =
      options.unroll.chunks > enough && !options.unroll.allForwardsFirst;
  chosen.chunks = hasMore ? enough : 0;
  const bool explains = std::exchange(explainsLimit, explainsLimit && !hasMore);
  const bool isFitted = succeeded(fitMemory(*largest));
  explainsLimit = explains;
  if (!isFitted && (!hasMore || smallest == 0))
    return failure();
  chosen.chunks = 0;
  if (isFitted) {
    if (!isAnySmaller && !hasMore)
      return success();
    if (failed(shrink(module, all)))
      return failure();
    if (plannedBytes(*all) <= options.memoryLimit)
      return success();
  }
  chosen = asked; // a refusal must name the smallest plan of all chunks
  return fitMemory(module);
}

LogicalResult Driver::enableRemarks() {
  const std::string any = ".*";
  const remark::RemarkCategories categories{any, any, any, any, any};
  return remark::enableOptimizationRemarks(
      context, /*streamer=*/nullptr,
      std::make_unique<remark::RemarkEmittingPolicyAll>(), categories,
      /*printAsEmitRemarks=*/true);
}

LogicalResult Driver::run(OwningOpRef<ModuleOp> &module, PhaseHook afterPhase) {
  for (const Phase &phase : phases().take_front(2)) {
    if (failed(runPhase(phase, *module, chosen)))
      return failure();
    if (!afterPhase(phase.name, *module))
      return success();
  }
  chosen.offloadTables = options.offloadEmbedding == "true";
  chosen.offloadBase = options.offloadBase;
  if (options.offloadActivations)
    chosen.copiedValues =
        options.offloadActivationsPolicy == "all" ? "all" : "hidden";
  if (options.memoryLimit > 0 && failed(chooseBudget(*module)))
    return failure();
  if (options.remarks && failed(enableRemarks()))
    return failure();
  // Run the last two phases with the chosen budget, and call the hook for each.
  for (const Phase &phase : phases().drop_front(2)) {
    if (failed(runPhase(phase, *module, chosen)))
      return failure();
    if (!afterPhase(phase.name, *module))
      return success();
  }
  return checkHostLimit(*module);
}

FailureOr<bool> Driver::plan(OwningOpRef<ModuleOp> &module) {
  explainsLimit = false;
  const bool isPlanned =
      succeeded(run(module, [](StringRef, ModuleOp) { return true; }));
  if (!isPlanned && smallest == 0)
    return failure();
  return isPlanned;
}
