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
#include "runtime/Base/Amounts.h"
#include "runtime/Module/ModuleLoader.h"

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

/// Returns "frozen base 1.3 MiB; adapters 0.2 MiB; ...". If `onlyHost`, lists
/// only arenas in host memory.
static std::string arenasInWords(ModuleOp program, bool onlyHost = false) {
  std::string text;
  for (auto arena : program.getOps<program::ArenaOp>())
    if (arena.getBytes() > 0 && (arena.isOnHost() || !onlyHost))
      text += fmt::format("{}{} {}", text.empty() ? "" : "; ",
                          arenaTitle(static_cast<unsigned>(arena.getKind())),
                          formatBytes(arena.getBytes()));
  return text;
}

static int64_t frozenBytes(ModuleOp program) {
  int64_t bytes = 0;
  for (auto arena : program.getOps<program::ArenaOp>())
    if (arena.getKind() == program::Arena::Frozen)
      bytes += arena.getBytes();
  return bytes;
}

/// Lists the largest tensors of a step, or of a prefill if nothing is trained:
/// "4.0 MiB of MODULE, ...".
static std::string largestTensors(ModuleOp program) {
  constexpr size_t kShown = 3;
  std::vector<std::string> tensors;
  for (auto entry : program.getOps<program::EntryOp>())
    if ((entry.getKind() == program::EntryKind::AccumulateLast ||
         entry.getKind() == program::EntryKind::Prefill) &&
        tensors.empty())
      for (program::BufferOp buffer : largestBuffers(entry, kShown))
        tensors.push_back(fmt::format("{} of {}",
                                      formatBytes(buffer.getBytes()),
                                      buffer.getLabel().value_or("").str()));
  return fmt::format("{}", fmt::join(tensors, ", "));
}

/// Returns the budget for the smallest plan: the last of concessions(), the
/// fewest activations, no prefetched weights and no joined siblings.
MemoryBudget Driver::leastBudget() const {
  MemoryBudget least = concessions().back();
  least.activationBytes = kLeastBudget;
  least.inOrder = least.siblingsApart = true;
  return least;
}

/// Returns a hint for the user if a plan with the base in host memory fits;
/// else an empty string.
std::string Driver::curedByOffload(ModuleOp step) {
  if (!traits.offloadsTables || chosen.offloadBase || options.trained.all)
    return "";
  MemoryBudget budget = leastBudget();
  budget.offloadBase = true;
  OwningOpRef<ModuleOp> plan = step.clone();
  if (failed(optimizeAndPlan(*plan, budget)) ||
      plannedBytes(*plan) > options.memoryLimit || isAboveHostLimit(*plan))
    return "";
  return fmt::format("--offload base would need {} of GPU memory and {} of "
                     "pinned host memory",
                     formatBytes(plannedBytes(*plan)),
                     formatBytes(plannedHostBytes(*plan)));
}

bool Driver::isAboveHostLimit(ModuleOp program) const {
  return options.hostMemoryLimit > 0 &&
         plannedHostBytes(program) > options.hostMemoryLimit;
}

/// Checks --host-memory-limit. Plans use host memory only on request, or if no
/// other plan is within --memory-limit.
LogicalResult Driver::checkHostLimit(ModuleOp program) const {
  if (!isAboveHostLimit(program))
    return success();
  InFlightDiagnostic error =
      emitError(program.getLoc())
      << "--host-memory-limit: the smallest plan needs "
      << formatBytes(plannedHostBytes(program)) << " ("
      << plannedHostBytes(program) << " bytes) of pinned host memory, but the "
      << "limit is " << formatBytes(options.hostMemoryLimit)
      << "; raise it to at least that, or offload less (--offload)";
  error.attachNote(program.getLoc())
      << "made up of: " << arenasInWords(program, /*onlyHost=*/true);
  return error;
}

LogicalResult Driver::refuseLimit(ModuleOp step, ModuleOp program) {
  smallest = plannedBytes(program);
  if (!explainsLimit)
    return failure();
  const std::string cure = curedByOffload(step);
  const StoredFormat *stored =
      storedFormat(std::string_view(options.quantize.format));
  InFlightDiagnostic error = emitError(program.getLoc())
      << "--memory-limit: the smallest plan needs " << formatBytes(smallest)
      << " (" << smallest << " bytes), but the limit is "
      << formatBytes(options.memoryLimit)
      << "; raise it to at least that, or lower "
      << (options.trains ? "--max-length, --per-device-train-batch-size or "
                           "--lora-r"
                         : "--generation-length or --generation-batch")
      << (stored && stored->bits == 4 ? "" : ", or use --load-in-4bit");
  error.attachNote(program.getLoc())
      << "made up of: " << arenasInWords(program);
  if (options.mesh.pp > 1)
    error.attachNote(program.getLoc())
        << "this is stage " << options.stage << " of a pipeline of "
        << options.mesh.pp
        << " stages; a larger --num-micro-batches makes chunks smaller";
  if (const int64_t base = frozenBytes(program); base > options.memoryLimit)
    error.attachNote(program.getLoc())
        << "the frozen base alone needs " << formatBytes(base)
        << (baseHolders(options.mesh) > 1
                ? " on each rank; use more ranks in --parallel"
                : ", unsharded; --parallel fsdp=N shards it over N ranks");
  if (std::string tensors = largestTensors(program); !tensors.empty())
    error.attachNote(program.getLoc()) << "large tensors: " << tensors;
  if (!cure.empty())
    error.attachNote(program.getLoc()) << cure;
  return error;
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
